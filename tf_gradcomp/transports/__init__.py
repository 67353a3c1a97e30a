# SPDX-License-Identifier: Apache-2.0
"""How payloads move between workers."""
