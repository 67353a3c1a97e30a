# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests.

pyproject.toml puts the oracles of tests/reference, and tests/support, on the import path.
"""

import functools
import os
from collections.abc import Callable

import numpy as np
import pytest
from core_build import CoreBuild

SEED = 20181128


@pytest.fixture
def rng() -> np.random.Generator:
    """A NumPy generator that starts from the same seed in every test."""
    return np.random.default_rng(SEED)


@pytest.fixture(scope="session")
def core_build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CoreBuild]:
    """The core built in a way of core_build.BUILDS, once for all tests that ask for it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # several pytest processes, which share what is above
        folder = folder.parent

    @functools.cache
    def build(name: str) -> CoreBuild:
        return CoreBuild(name, folder / f"core_{name}")

    return build
