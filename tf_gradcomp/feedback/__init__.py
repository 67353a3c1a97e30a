# SPDX-License-Identifier: Apache-2.0
"""What becomes of the part of a gradient that a step did not send."""
