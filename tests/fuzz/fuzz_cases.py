"""One case of the fuzz campaign: a file is put in its place and read, and what comes of it has a name."""

import importlib
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import fuzz_readers
import pytest
from hypothesis import strategies as st

import whole_runs
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.errors import BayesndeError

OUTCOMES = ("read", "refused", "traceback", "crash", "hang", "over memory")
READ, REFUSED, TRACEBACK, CRASH, HANG, OVER_MEMORY = OUTCOMES
# What reading a file of a few kilobytes may take more than the process has: text is read 8 MiB at a time, in copies.
MOST_BYTES = 300 << 20


class Case(NamedTuple):
    """Damaged content, and what to do with it."""

    contents: st.SearchStrategy[bytes]
    path: Path
    read: Callable[[Path], object]


def target_names() -> list[str]:
    """Every format, and every file of a run."""
    import fuzz_artifacts

    return [*fuzz_readers.TARGETS, *fuzz_artifacts.TARGETS]


def make_run(folder: Path) -> None:
    """A complete run in a folder, with a checkpoint that a stage could go on from, and the record of an array."""
    import fuzz_artifacts

    with pytest.MonkeyPatch.context() as monkeypatch:
        whole_runs.install(monkeypatch)
        run = whole_runs.whole_run(folder)
    fuzz_artifacts.add_unfinished(RunLayout(run))


def case_of(name: str, folder: Path) -> Case:
    """The case of a target, with the run in a folder if it is one of its files."""
    if name in fuzz_readers.TARGETS:
        return Case(fuzz_readers.TARGETS[name], folder / "data", fuzz_readers.read)
    import fuzz_artifacts

    layout, target = RunLayout(folder / "run"), fuzz_artifacts.TARGETS[name]
    (new,) = layout.sets("density")[:1]
    path = layout.root / (target.place or name).replace("/new/", f"/{new}/")
    content = path.read_bytes() if path.exists() else b""
    if target.loads:
        importlib.import_module(target.loads)  # before memory is limited
    return Case(target.damage(content), path, lambda path: target.read(layout, path))


def outcome_of(case: Case, content: bytes) -> tuple[str, str]:
    """What comes of a file with this content, and what was said, or the traceback."""
    before = case.path.read_bytes() if case.path.exists() else None
    case.path.write_bytes(content)
    _forget_peak()
    start = _peak()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            case.read(case.path)
        outcome, told = READ, ""
    except BayesndeError as error:
        outcome, told = REFUSED, str(error)
    except MemoryError:
        outcome, told = OVER_MEMORY, traceback.format_exc()
    except Exception:
        outcome, told = TRACEBACK, traceback.format_exc()
    if outcome in (READ, REFUSED) and _peak() - start > MOST_BYTES:
        outcome, told = OVER_MEMORY, f"{(_peak() - start) >> 20} MiB"
    if before is None:
        case.path.unlink()
    else:
        case.path.write_bytes(before)
    return outcome, told


def _forget_peak() -> None:
    """Have the system count the peak of our memory anew."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """The largest resident memory since then, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0
