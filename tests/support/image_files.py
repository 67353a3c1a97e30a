# SPDX-License-Identifier: Apache-2.0
"""Images to train the examples on, as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_idx(path: Path, array: np.ndarray) -> None:
    """Writes an idx file of unsigned bytes."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_images(folder: Path, num_train: int, num_test: int, rng: np.random.Generator) -> Path:
    """Makes a folder of ten classes, each a bright bar at a place of its own: easily learned."""
    folder.mkdir()
    for stem, count in (("train", num_train), ("t10k", num_test)):
        labels = rng.integers(0, 10, count)
        pixels = rng.integers(0, 128, (count, 28, 28))
        for image, label in zip(pixels, labels, strict=True):
            image[2 * label + 3 : 2 * label + 6, 4:24] = 255
        write_idx(folder / f"{stem}-images-idx3-ubyte", pixels)
        write_idx(folder / f"{stem}-labels-idx1-ubyte", labels)
    return folder
