"""Every known kind of bad input: exit code 2, one clear message, nothing left behind.

The whole messages stand in `bad_input_messages.txt`, to be read by a person when one changes.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from bad_inputs import CASES, BadInputCase, good_csv

MESSAGES = Path(__file__).with_name("bad_input_messages.txt")


def _messages() -> dict[str, str]:
    sections = MESSAGES.read_text("utf-8").split("## ")[1:]
    return {name: text.strip() for name, _, text in (section.partition("\n") for section in sections)}


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_refused_with_its_message_and_leaves_nothing(
    case: BadInputCase, bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = case.make(tmp_path)
    before = _files(tmp_path)
    outcome = bayesnde(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    message = outcome.err[outcome.err.index("error:") :].strip()
    assert message == _messages()[case.name]
    assert "\nhint: " in message
    assert _files(tmp_path) == before


def test_there_are_more_than_forty_kinds_each_with_its_own_message() -> None:
    assert len(CASES) >= 40
    assert set(_messages()) == {case.name for case in CASES}


def test_bad_input_does_not_harm_an_older_result(
    bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text(good_csv())
    assert bayesnde("prepare", "data.csv").code == 0
    before = {name: (tmp_path / "run/prepare" / name).read_bytes() for name in _files(tmp_path / "run/prepare")}
    (tmp_path / "data.csv").write_text(good_csv() + "1,2\n")
    assert bayesnde("prepare", "data.csv", "--restart").code == 2
    after = {name: (tmp_path / "run/prepare" / name).read_bytes() for name in _files(tmp_path / "run/prepare")}
    assert after == before
