# SPDX-License-Identifier: Apache-2.0
"""Which backup workers go on from: the newest that all of them have, and can read."""

import loopback
import pytest

from tf_gradcomp.backup import Backup, BackupFolder
from tf_gradcomp.callbacks import BackupAndRestore


def make(path, **steps):
    """Makes what the workers' checkpoint managers leave: `w0of2=[3, 4]`."""
    for name, numbers in steps.items():
        index, number = name[1:].split("of")
        folder = path / f"worker-{index}-of-{number}"
        folder.mkdir(parents=True)
        for step in numbers:
            (folder / f"step-{step}.index").touch()
            (folder / f"step-{step}.data-00000-of-00001").touch()
        (folder / "checkpoint").touch()


def newest(num_workers, path_of):
    found = loopback.run_workers(
        num_workers, lambda c: BackupFolder(path_of(c.worker_index), c).newest()
    )
    assert all(backup == found[0] for backup in found)
    return found[0]


@pytest.mark.parametrize(
    ("saved", "num_workers", "expected"),
    [
        ({}, 2, None),
        ({"w0of2": [8, 16], "w1of2": [8, 16]}, 2, Backup(16, 2)),
        # Worker 1 ended between worker 0's backup and its own; or had begun one more.
        ({"w0of2": [8, 16], "w1of2": [8]}, 2, Backup(8, 2)),
        ({"w0of2": [8], "w1of2": [8, 16]}, 2, Backup(8, 2)),
        # The first backup of a run, and worker 1 ended before its own.
        ({"w0of2": [8]}, 2, None),
        ({"w0of2": [8], "w1of2": []}, 2, None),
        # Another number of workers needs all of the old ones'.
        ({"w0of2": [8, 16], "w1of2": [8]}, 3, Backup(8, 2)),
        ({"w0of3": [8], "w1of3": [8], "w2of3": [8]}, 2, Backup(8, 3)),
        # The newer one counts, and of two of the same step that of as many workers.
        ({"w0of1": [24], "w0of2": [16], "w1of2": [16]}, 2, Backup(24, 1)),
        ({"w0of1": [16], "w0of2": [16], "w1of2": [16]}, 2, Backup(16, 2)),
    ],
)
def test_all_go_on_from_the_newest_that_all_have(saved, num_workers, expected, tmp_path):
    make(tmp_path, **saved)
    (tmp_path / "worker-0-of-2.old").touch()
    assert newest(num_workers, lambda index: tmp_path) == expected


def test_disks_of_their_own_will_do_for_the_same_number_of_workers(tmp_path):
    for index in range(2):
        make(tmp_path / str(index), **{f"w{index}of2": [8, 16]})
    assert newest(2, lambda index: tmp_path / str(index)) == Backup(16, 2)
    with pytest.raises(ValueError, match="none of one step by all workers"):
        newest(3, lambda index: tmp_path / str(index % 2))


@pytest.mark.parametrize(
    "saved",
    [
        {"w0of2": [16], "w1of2": [8]},
        {"w0of2": [8, 16]},
        {"w0of3": [8, 16], "w2of3": [8, 16]},
    ],
)
def test_incomplete_backups_are_an_error_and_stay(saved, tmp_path):
    """Somebody has moved or deleted some; what is left may still be of use."""
    make(tmp_path, **saved)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        ValueError, match=r"worker 1 sees steps \[.*8.*\]. Put back what is missing"
    ):
        newest(2, lambda index: tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_written_to_is_an_error_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        BackupFolder(tmp_path / "file", None).prepare()
    BackupFolder(tmp_path / "new" / "folder", None).prepare()
    assert list((tmp_path / "new" / "folder" / "worker-0-of-1").iterdir()) == []


def test_a_single_worker_asks_nobody(tmp_path):
    make(tmp_path, w0of1=[8])
    assert BackupFolder(tmp_path, None).newest() == Backup(8, 1)
    assert BackupFolder(tmp_path / "none", None).newest() is None


def test_later_backups_of_a_run_that_ended_are_forgotten(tmp_path):
    """Worker 1 had made one more, which this run will make at another time, and worker 0 not."""
    make(tmp_path, w0of2=[8], w1of2=[8, 16], w0of3=[8, 24])

    def go_on(collectives):
        folder = BackupFolder(tmp_path, collectives)
        folder.forget_after(folder.newest())

    loopback.run_workers(2, go_on)
    assert sorted(path.name for path in tmp_path.glob("*/*16*")) == []
    assert sorted(path.name for path in tmp_path.glob("*/*24*")) == []
    assert len(list(tmp_path.glob("*/step-8.*"))) == 6


def test_a_first_backup_that_is_incomplete_is_dropped_but_not_those_of_other_clusters(tmp_path):
    make(tmp_path, w0of2=[8], w0of3=[8])

    def begin(collectives):
        folder = BackupFolder(tmp_path, collectives)
        assert folder.newest() is None
        folder.forget_after(None)

    loopback.run_workers(2, begin)
    assert not list(tmp_path.glob("worker-0-of-2/step-*"))
    assert len(list(tmp_path.glob("worker-0-of-3/step-8.*"))) == 2


def test_all_backups_are_deleted_in_the_end_and_nothing_else(tmp_path):
    make(tmp_path, w0of2=[8], w1of2=[8], w0of3=[8])
    (tmp_path / "notes").touch()
    loopback.run_workers(2, lambda c: BackupFolder(tmp_path, c).delete())
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_folder_must_be_named():
    with pytest.raises(ValueError, match="backup_dir must name a folder"):
        BackupAndRestore("")


@pytest.mark.parametrize("save_freq", [0, -1, "batch", 2.5, True, None])
def test_a_bad_frequency_is_refused(save_freq):
    with pytest.raises(ValueError, match="save_freq must be 'epoch' or a number of steps"):
        BackupAndRestore("backups", save_freq)
