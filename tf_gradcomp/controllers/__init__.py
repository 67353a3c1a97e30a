# SPDX-License-Identifier: Apache-2.0
"""Parameters of the next exchanges, from numbers that all workers share.

Controllers are closed loops, which look at gradients; schedules look at the exchange's number.
"""
