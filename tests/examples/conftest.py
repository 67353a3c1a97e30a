# SPDX-License-Identifier: Apache-2.0
"""Puts the examples on the import path, as running one of them does, and finds data for them."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


@pytest.fixture(scope="session")
def images():
    """Name, pixels and labels of the examples' data if they are here, else of data made here."""
    import fashion_mnist

    def refuse(folder):
        raise OSError("a test downloads nothing")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fashion_mnist, "_download", refuse)
        try:
            found = fashion_mnist.load(fashion_mnist.locate(None))
            return found.name, found.train_images, found.train_labels
        except FileNotFoundError:
            rng = np.random.default_rng(0)
            labels = rng.integers(0, 10, 4000, np.int32)
            classes = rng.random((10, 7, 7)).repeat(4, axis=1).repeat(4, axis=2)
            pixels = np.uint8(127 * (classes[labels] + rng.random((4000, 28, 28))))
            return "images made here", pixels[..., np.newaxis], labels
