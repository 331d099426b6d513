"""One case of the fuzz campaign: a file is put in its place and read, and what comes of it has a name."""

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

READ, REFUSED, CRASH, HANG, OVER_MEMORY = OUTCOMES = ("read", "refused", "crash", "hang", "over memory")
# What reading a file of a few kilobytes may take more than the process has: text is read 8 MiB at a time, in copies.
MOST_BYTES = 300 << 20


class Case(NamedTuple):
    """Damaged content, and what to do with it."""

    contents: st.SearchStrategy[bytes]
    path: Path
    read: Callable[[Path], object]


def reader_cases(folder: Path) -> dict[str, Case]:
    """A case for each format."""
    return {name: Case(contents, folder / "data", fuzz_readers.read) for name, contents in fuzz_readers.TARGETS.items()}


def make_run(folder: Path) -> None:
    """A complete run in a folder."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        whole_runs.install(monkeypatch)
        whole_runs.whole_run(folder)


def artifact_cases(folder: Path) -> dict[str, Case]:
    """A case for each file of the run in a folder."""
    import fuzz_artifacts

    layout = RunLayout(folder / "run")
    cases = {}
    for target in fuzz_artifacts.TARGETS:
        place = fuzz_artifacts.PLACES.get(target.name, target.name)
        (new,) = layout.sets("density")[:1]
        path = layout.root / place.replace("/new/", f"/{new}/")
        content = path.read_bytes() if path.exists() else b""
        read = _reading(layout, target.read)
        cases[target.name] = Case(target.damage(content), path, read)
    return cases


def _reading(layout: RunLayout, read: Callable[[RunLayout, Path], object]) -> Callable[[Path], object]:
    return lambda path: read(layout, path)


def outcome_of(case: Case, content: bytes) -> tuple[str, str]:
    """What comes of a file with this content, and the traceback if that is a crash."""
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
        outcome, told = CRASH, traceback.format_exc()
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
