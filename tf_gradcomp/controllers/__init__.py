# SPDX-License-Identifier: Apache-2.0
"""Closed loops: parameters of the next exchanges, from numbers that all workers share."""
