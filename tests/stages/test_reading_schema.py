"""`schema.json` as stages read it: whole and sound, or refused with the command that makes it again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.stages.reading import read_schema


@pytest.fixture
def layout(fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(fitted / "prepare", "run/prepare")
    return RunLayout(Path("run"))


def _feature(document: dict, index: int) -> dict:
    return document["features"][index]


def _first_map(name: str, value: Any) -> Callable[[dict], None]:
    return lambda document: _feature(document, 0)["map"]["mixture"].update({name: value})


CHANGES: list[tuple[Callable[[dict], Any], str]] = [
    (lambda document: document.pop("features"), "'features' is not there"),
    (lambda document: document.update(features=[]), "0 features of 0 names"),
    (lambda document: document.update(features=3), "'int' object is not iterable"),
    (lambda document: _feature(document, 0).update(name="b"), "3 features of 2 names"),
    (lambda document: _feature(document, 0).update(name=None), "None is no text"),
    (lambda document: _feature(document, 0).update(kind="colour"), "'colour' is not a valid Kind"),
    (lambda document: _feature(document, 0).update(categories=["x"]), "column 'a' is continuous with 1 categories"),
    (lambda document: _feature(document, 0).update(map=[]), "'list' object has no attribute 'get'"),
    (_first_map("scale", 0), "scale is 0, out of range"),
    (_first_map("centre", "1"), "centre is '1', not a finite number"),
    (_first_map("centre", float("nan")), "centre is nan, not a finite number"),
    (_first_map("tail", [1.0]), "not enough values to unpack (expected 3, got 1)"),
    (_first_map("weights", [-1.0]), "weights has -1, out of range"),
    (_first_map("weights", []), "weights is [], not a list of numbers"),
    (lambda document: _feature(document, 2)["map"].update(noise=[1, 0]), "noise goes from 1 to 0"),
    (lambda document: _feature(document, 2)["map"].update(background_weight=2), "background_weight is 2, out of range"),
    (lambda document: document.update(classes=["u", "u"]), "['u', 'u'] is no list of different texts"),
    (lambda document: document.update(classes=[]), "0 classes of the condition 'k', classes_are_whole is False"),
    (lambda document: document.update(seed=-1), "seed is -1"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "found"), CHANGES, ids=[found for _, found in CHANGES])
def test_a_schema_of_another_shape_is_damaged(layout: RunLayout, change: Callable[[dict], Any], found: str) -> None:
    path = layout.schema_file()
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(BadArtifact) as caught:
        read_schema(layout)
    assert str(caught.value) == (
        f"error: run/prepare/schema.json is damaged\n  {found}\nhint: run `bayesnde prepare DATA --restart`"
    )


def test_a_newer_schema_is_refused(layout: RunLayout) -> None:
    path = layout.schema_file()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 2}))
    with pytest.raises(BadArtifact) as caught:
        read_schema(layout)
    assert str(caught.value) == (
        "error: run/prepare/schema.json was written by a newer bayesnde\n"
        "  schema version 2, this bayesnde reads up to 1\n"
        "hint: upgrade bayesnde, or run `bayesnde prepare DATA --restart`"
    )


def test_the_schema_behind_the_damaged_ones_is_sound(layout: RunLayout) -> None:
    assert read_schema(layout).roles.features == ("a", "b", "n")
