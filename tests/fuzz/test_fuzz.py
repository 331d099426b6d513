"""A sample of the fuzz campaign: files are read or refused. Readers that are broken on purpose are noticed."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fuzz_controls
import fuzz_readers
import pytest
from fuzz_cases import OUTCOMES, READ, REFUSED, case_of, make_run, outcome_of, target_names
from fuzz_workers import each_case

_EACH = 12  # cases of a target


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run."""
    folder = tmp_path_factory.mktemp("fuzz")
    make_run(folder)
    return folder


@pytest.fixture
def sample(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[tuple[str, str]]]:
    """What comes of some cases of a target."""
    shutil.copytree(made / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)

    def outcomes(name: str) -> list[tuple[str, str]]:
        case, found = case_of(name, tmp_path), []
        each_case(case, lambda content: found.append(outcome_of(case, content)), n_cases=_EACH, seed=1)
        return found

    return outcomes


def test_a_damaged_file_is_read_or_refused(sample: Callable) -> None:
    found = {name: sample(name) for name in target_names()}
    assert [told for outcomes in found.values() for end, told in outcomes if end not in (READ, REFUSED)] == []
    assert sum(map(len, found.values())) >= 10 * len(found)


def test_what_is_damaged_was_a_file_that_is_read(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all would be refused for one and the same reason."""
    shutil.copytree(made / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    cases = {name: case_of(name, tmp_path) for name in target_names() if name not in fuzz_readers.TARGETS}
    there = {name: case.path.read_bytes() for name, case in cases.items() if case.path.exists()}
    made_up = {"settings of --config", "density/test/shards.json", "density/test/.running"}
    assert cases.keys() - there.keys() == made_up
    assert {name: outcome_of(cases[name], content) for name, content in there.items()} == dict.fromkeys(
        there, (READ, "")
    )


def test_readers_that_are_broken_on_purpose_are_noticed() -> None:
    """The control: tracebacks, warnings, crashes, hangs and memory, each by its name."""
    command = [sys.executable, Path(__file__).with_name("campaign.py"), "--control", "--cases", "7"]
    done = subprocess.run([*command, "--hang-seconds", "4"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(tuple(fuzz_controls.READERS))]
    counted = {line[:42].strip(): [int(number) for number in line[42:].split()] for line in lines}
    assert counted == {
        name: [1, *(int(outcome == end) for outcome in OUTCOMES)] for name, (_, end) in fuzz_controls.READERS.items()
    }
