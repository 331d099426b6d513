"""One writer at a time: replace, create once, clean up, and explain what the system refuses."""

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from bayesnde_cli.artifacts import atomic
from bayesnde_cli.errors import CannotWrite


def fail_with(number: int):
    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_json_has_sorted_keys_plain_letters_and_a_final_newline(tmp_path):
    atomic.write_json(tmp_path / "a.json", {"b": [1, 2.5], "a": "größer"})
    text = '{\n  "a": "größer",\n  "b": [\n    1,\n    2.5\n  ]\n}\n'
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_know_is_refused_and_leaves_nothing(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(tmp_path / "a.json", {"a": value})
    assert names(tmp_path) == []


def test_writing_replaces_and_makes_folders(tmp_path):
    path = tmp_path / "deep" / "er" / "a"
    atomic.write_bytes(path, b"old")
    atomic.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(path.parent) == ["a"]


def test_files_have_the_permissions_of_ordinary_files(tmp_path):
    (tmp_path / "ordinary").write_bytes(b"")
    atomic.create_once(tmp_path / "ours", b"")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "ours")}
    assert len(modes) == 1


def test_create_once_keeps_the_first(tmp_path):
    assert atomic.create_once(tmp_path / "a", b"first") is True
    assert atomic.create_once(tmp_path / "a", b"second") is False
    assert (tmp_path / "a").read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


def test_writing_once_tells_whether_it_published(tmp_path):
    for expected in (True, False):
        with atomic.writing_once(tmp_path / "a") as draft:
            draft.path.write_bytes(b"x")
        assert draft.is_published is expected
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("writer", [atomic.writing, atomic.writing_once])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, error, writer):
    def write_half() -> None:
        with writer(tmp_path / "a") as draft:
            getattr(draft, "path", draft).write_bytes(b"half")
            raise error

    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(error):
        write_half()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_link_whose_reply_was_lost_counts_as_made(tmp_path, monkeypatch):
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)  # the repeated request of an NFS client

    monkeypatch.setattr(os, "link", link_twice)
    assert atomic.create_once(tmp_path / "a", b"x") is True


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_without_hard_links_the_first_still_wins(tmp_path, monkeypatch, number):
    monkeypatch.setattr(os, "link", fail_with(number))
    assert atomic.create_once(tmp_path / "a", b"first") is True
    with atomic.writing_once(tmp_path / "a") as draft:
        draft.path.write_bytes(b"second")
    assert draft.is_published is False
    assert (tmp_path / "a").read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOSPC, "No space left on device"), (errno.EDQUOT, "Disk quota exceeded")],
)
def test_a_full_disk_is_named_with_a_way_out(tmp_path, monkeypatch, number, reason):
    monkeypatch.setattr(os, "fsync", fail_with(number))
    with pytest.raises(CannotWrite) as caught:
        atomic.write_bytes(tmp_path / "a", b"x")
    assert str(caught.value) == (
        f"error: cannot write {tmp_path}/a\n"
        f"  {reason}\n"
        "hint: free some space and run the same command again; finished work is kept"
    )
    assert caught.value.exit_code == 2
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_may_not_be_written_is_named(tmp_path, monkeypatch, number):
    monkeypatch.setattr(os, "replace", fail_with(number))
    with pytest.raises(CannotWrite) as caught:
        atomic.write_bytes(tmp_path / "a", b"x")
    assert str(caught.value) == (
        f"error: cannot write {tmp_path}/a\n  {os.strerror(number)}\nhint: choose a place that you may write to"
    )


def test_a_file_in_the_place_of_a_folder_is_explained(tmp_path):
    (tmp_path / "data.csv").write_text("x")
    for path in (tmp_path / "data.csv" / "a", tmp_path / "data.csv" / "b" / "a"):
        with pytest.raises(CannotWrite):
            atomic.create_once(path, b"x")


def test_an_error_about_another_file_is_not_taken_for_ours(tmp_path):
    with pytest.raises(PermissionError), atomic.writing(tmp_path / "a"):
        raise PermissionError(errno.EACCES, "Permission denied", "/some/input.csv")


def test_a_filesystem_that_cannot_flush_folders_is_good_enough(tmp_path, monkeypatch):
    fsync = os.fsync

    def fsync_files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_files_only)
    atomic.write_bytes(tmp_path / "a", b"x")
    assert names(tmp_path) == ["a"]


def test_temporaries_of_other_hosts_are_swept_after_a_day(tmp_path):
    fresh = tmp_path / ".tmp-node07.abcdef-12-0123abcd-plan.json"
    old = tmp_path / ".tmp-node08.abcdef-12-0123abcd-plan.json"
    old_folder = tmp_path / ".tmp-node08.abcdef-13-0123abcd-test"
    for path in (fresh, old, tmp_path / "plan.json", tmp_path / ".tmp-notes"):
        path.write_text("x")
    (old_folder / "inner").mkdir(parents=True)
    yesterday = time.time() - 25 * 3600
    for path in tmp_path.iterdir():
        if path != fresh:
            os.utime(path, (yesterday, yesterday))
    assert atomic.sweep(tmp_path) == [old, old_folder]
    assert names(tmp_path) == [fresh.name, ".tmp-notes", "plan.json"]


def test_temporaries_of_other_hosts_stay_when_our_clock_is_ahead(tmp_path, monkeypatch):
    fresh = tmp_path / ".tmp-node07.abcdef-12-0123abcd-plan.json"
    fresh.write_text("x")
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert atomic.sweep(tmp_path) == []
    assert names(tmp_path) == [fresh.name]


def test_sweeping_a_folder_that_is_not_there_finds_nothing(tmp_path):
    assert atomic.sweep(tmp_path / "nowhere") == []
