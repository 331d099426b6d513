"""Files are whole or absent; damage and refusals are explained; claims of dead processes are taken over."""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesnde_cli.errors import BadArtifact, CannotWrite, StageBusy
from bayesnde_cli.runs.files import (
    HOST,
    LEASE_SECONDS,
    claim,
    create_once,
    holder,
    holding,
    read_arrays,
    running,
    set_name_of,
    sha256_json,
    sweep,
    sweep_claims,
    write_arrays,
    write_bytes,
    write_json,
    write_once,
    writing,
)
from bayesnde_cli.runs.layout import RunLayout

ARRAYS: dict[str, np.ndarray] = {
    "decoder/dense1/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "step": np.array(7, np.int32),
    "latents": np.linspace(-1, 1, 5),
}
FILE_NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=50
).filter(lambda name: name not in (".", ".."))


def fail_with(number: int) -> Callable[..., None]:
    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Writing


def test_json_has_sorted_keys_plain_letters_and_a_final_newline(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1, 2.5], "a": "größer"})
    text = '{\n  "a": "größer",\n  "b": [\n    1,\n    2.5\n  ]\n}\n'
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == text
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "b.json", {"a": float("nan")})
    assert names(tmp_path) == ["a.json"]
    assert sha256_json({"a": 1, "b": (2, 3)}) == sha256_json({"b": [2, 3], "a": 1})
    assert sha256_json({"a": 1}) != sha256_json({"a": 1.0})


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    def write_half(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt

    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_once(tmp_path / "a", write_half)
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "a") as draft:
        write_half(draft)
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.parametrize("has_links", [True, False])
def test_the_first_writer_wins(has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", fail_with(errno.EPERM))
    assert create_once(tmp_path / "a", b"first") is True
    assert create_once(tmp_path / "a", b"second") is False
    assert write_once(tmp_path / "a", lambda draft: draft.write_bytes(b"third")) is False
    assert (tmp_path / "a").read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


def test_a_link_whose_reply_was_lost_counts_as_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)  # the repeated request of an NFS client

    monkeypatch.setattr(os, "link", link_twice)
    assert create_once(tmp_path / "a", b"x") is True


@pytest.mark.parametrize(("call", "number"), [("fsync", errno.ENOSPC), ("replace", errno.EROFS)])
def test_a_refusal_of_the_system_is_named_with_a_way_out(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, call, fail_with(number))
    with pytest.raises(CannotWrite) as caught:
        write_bytes(tmp_path / "a", b"x")
    assert str(caught.value) == (
        f"error: cannot write {tmp_path}/a\n  {os.strerror(number)}\nhint: free some space, or choose a place that "
        "you may write to, and run the same command again; finished work is kept"
    )
    assert caught.value.exit_code == 2
    assert names(tmp_path) == []


def test_a_closed_pipe_is_not_a_refusal_to_write(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError), writing(tmp_path / "a"):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_temporaries_of_other_hosts_are_swept_after_a_day(tmp_path: Path) -> None:
    fresh, old = (tmp_path / f".tmp-node{number}-12-0123abcd-plan.json" for number in (7, 8))
    for path in (fresh, old, tmp_path / "plan.json", tmp_path / ".tmp-notes"):
        path.write_text("x")
    (tmp_path / ".tmp-node8-13-0123abcd-test" / "inner").mkdir(parents=True)
    yesterday = time.time() - 25 * 3600
    for path in tmp_path.iterdir():
        if path != fresh:
            os.utime(path, (yesterday, yesterday))
    sweep(tmp_path)
    assert names(tmp_path) == [fresh.name, ".tmp-notes", "plan.json"]
    sweep(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("file", "stem"), [("digits.csv.gz", "digits"), ("my data (v1.2).csv", "my-data-v1.2"), ("数据.csv", "data")]
)
def test_a_set_is_named_after_its_file_and_content(file: str, stem: str) -> None:
    assert set_name_of(Path(file), ["0123456789abcdef"]) == f"{stem}-01234567"


@given(name=FILE_NAMES, content=st.binary(max_size=20))
def test_whatever_a_file_is_called_its_set_has_a_safe_name(name: str, content: bytes) -> None:
    found = set_name_of(Path(name), [hashlib.sha256(content).hexdigest()])
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9a-f]{8}", found)
    assert len(found) <= 40


# Arrays


def test_arrays_and_facts_read_back_as_they_were(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", ARRAYS, {"epoch": 3, "name": "é"})
    arrays, facts = read_arrays(tmp_path / "a.npz")
    assert facts == {"epoch": 3, "name": "é", "schema_version": 1}
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)
    # Equal content, equal bytes.
    write_arrays(tmp_path / "b.npz", dict(reversed(ARRAYS.items())), {"name": "é", "epoch": 3})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_objects_are_never_pickled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_arrays(tmp_path / "a", {"x": np.array([{}], object)}, {})
    assert list(tmp_path.iterdir()) == []
    np.savez(tmp_path / "b.npz", x=np.array([{}], object))
    with pytest.raises(BadArtifact, match="allow_pickle=False"):
        read_arrays(tmp_path / "b.npz")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_damaged_arrays_are_named(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    write_arrays(path, ARRAYS, {})
    content = bytearray(path.read_bytes())
    content[content.index(b"NUMPY") + 130] ^= 1
    path.write_bytes({"truncated": bytes(content[:-50]), "flipped": bytes(content), "empty": b""}[damage])
    with pytest.raises(BadArtifact, match="is damaged"):
        read_arrays(path)


# Claims


def write_claim(path: Path, **changes: object) -> None:
    record = {"token": "ab", "host": HOST, "pid": os.getpid(), "started": "2025-01-31T12:00:00+00:00"}
    path.write_text(json.dumps({**record, **changes}))


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.fixture(scope="module")
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".claim-00000"


def test_a_claim_is_held_until_it_is_released_whatever_happens(path: Path) -> None:
    with holding(path) as ours:
        assert ours is not None
        assert claim(path) is None
    with pytest.raises(KeyboardInterrupt), holding(path):
        raise KeyboardInterrupt
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_a_process_that_is_gone_loses_its_claim(is_cut_short: bool, path: Path, dead_pid: int) -> None:
    write_claim(path, pid=dead_pid)
    if is_cut_short:  # an earlier process died while it took the claim over
        write_claim(path.with_name(".claim-00000.taking"), pid=dead_pid)
    found = holder(path)
    assert found is not None
    assert not found.is_alive
    ours = claim(path)
    assert ours is not None
    assert ours.refresh()
    assert os.listdir(path.parent) == [path.name]


def test_a_process_that_is_killed_and_not_yet_reaped_loses_its_claim(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not asked how
        write_claim(path, pid=process.pid)
        assert claim(path) is not None


@pytest.mark.parametrize("host", [HOST, "node07"])
def test_a_silent_process_keeps_its_claim_as_long_as_the_lease(host: str, path: Path) -> None:
    """On this host its id may have been reused, on another one it cannot be looked up."""
    write_claim(path, host=host)
    for seconds in (LEASE_SECONDS - 60, -60):  # clocks may be a minute apart
        age(path, seconds)
        assert claim(path) is None
    age(path, -24 * 3600)  # the clock was set back
    found = holder(path)
    assert found is not None
    assert not found.is_alive
    age(path, LEASE_SECONDS + 60)
    assert claim(path) is not None


def test_an_owner_that_was_suspended_for_too_long_notices_and_removes_nothing(path: Path) -> None:
    ours = claim(path)
    assert ours is not None
    write_claim(path, host="node07", token="theirs")
    assert ours.refresh() is False
    ours.release()
    assert path.exists()
    path.unlink()
    assert ours.refresh() is False
    ours.release()


def test_claims_of_dead_processes_are_swept_and_those_of_live_ones_stay(tmp_path: Path, dead_pid: int) -> None:
    living = (".running", ".claim-00001", ".claim-00002.taking")
    for name in (".claim-00000", ".claim-00003.taking", ".running.taking"):
        write_claim(tmp_path / name, pid=dead_pid)
    for name in living:
        write_claim(tmp_path / name)
    (tmp_path / "plan.json").write_text("{}")
    sweep_claims(tmp_path)
    assert set(os.listdir(tmp_path)) == {*living, "plan.json"}


def test_a_busy_stage_is_reported_with_its_owner(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    path = layout.claim_file("warmstart")
    with running(layout, "warmstart"):
        write_claim(path, host="node07", pid=42)
        with pytest.raises(StageBusy) as caught, running(layout, "warmstart"):
            pass
    assert str(caught.value) == (
        "error: warmstart is being made by another process\n"
        "  process 42 on node07, since 2025-01-31T12:00:00+00:00\n"
        f"hint: wait for it; if it is dead, delete {path}"
    )
