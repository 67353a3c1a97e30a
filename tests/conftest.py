# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests. pyproject.toml puts the oracles of tests/reference on the import path."""

import numpy as np
import pytest

SEED = 20181128


@pytest.fixture
def rng() -> np.random.Generator:
    """A NumPy generator that starts from the same seed in every test."""
    return np.random.default_rng(SEED)
