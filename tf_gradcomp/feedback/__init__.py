# SPDX-License-Identifier: Apache-2.0
"""What one step leaves for the next, beside the residual: momentum, and the learning rate."""
