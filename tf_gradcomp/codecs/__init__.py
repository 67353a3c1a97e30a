# SPDX-License-Identifier: Apache-2.0
"""Codecs: from coefficients to payload words and back. ``base`` says what each part promises."""
