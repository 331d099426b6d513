"""Column names and classes that try to steer a terminal, a page or a message: spelled out there, kept in the tables."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest

import fake_engine
import linear_model
import whole_runs
from whole_runs import FEW, SMALL

ESCAPE, TAG, LINE = "\x1b[31mred\x1b[0m", "<script>alert('a')</script>", "n\nhint: delete everything"
LONG, TURNED, CONDITION = "long" * 5000, "\u202eabc", 'k"&<b>\x07'
NAMES = [ESCAPE, TAG, LINE, LONG, TURNED]
CLASSES = ["<u>\x1b[2J", "v\nerror: none"]


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table of such names, and stand-ins for the engine and the networks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fake_engine, "N_LATENT", 2)
    whole_runs.install(monkeypatch)
    rng = np.random.default_rng(0)
    with Path("d.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*NAMES, CONDITION])
        for _ in range(300):
            writer.writerow([*(f"{cell:.5f}" for cell in rng.normal(size=len(NAMES))), CLASSES[rng.integers(0, 2)]])
    n = len(NAMES)
    model = linear_model.LinearModel(
        weights=rng.normal(size=(n, 2)), offset=np.zeros(n), variance=np.ones(n), shifts=np.zeros(2)
    )
    linear_model.install(model)
    fake_engine.install()
    return tmp_path


def _is_harmless(text: str) -> bool:
    """No control character but the ends of lines, and no line that a name has begun."""
    lines = text.split("\n")
    is_plain = all(char.isprintable() for line in lines for char in line)
    return is_plain and not any(line.startswith(("hint: delete", "error: none")) for line in lines)


def test_names_are_spelled_out_for_people_and_kept_in_tables(
    bayesnde: Callable, hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> tuple[str, str]:
        outcome = bayesnde(*arguments)
        assert outcome.code == 0, outcome.err
        assert _is_harmless(outcome.err), outcome.err
        assert max(map(len, outcome.err.split("\n"))) < 3000
        return outcome.out, outcome.err

    import fake_model

    fake_model.install(monkeypatch, fake_model.NormalModel(n_columns=len(NAMES)))
    _, err = run("prepare", "d.csv", "--condition", CONDITION, "--scale", "standard")
    assert "\\x1b[31mred" in err
    fake_engine.pretend_refined(Path("run"))
    assert _is_harmless(run("density", *SMALL)[0])
    assert _is_harmless(run("evaluate", *FEW)[0])
    assert _is_harmless(run("outliers", "--top", "3")[0])
    assert _is_harmless(run("status")[0])
    assert _is_harmless(run("grid", ESCAPE, LINE, "--points", "3", "--draws", "64", "--picture", "map.svg")[0])

    assert [name for name in pq.read_schema("run/prepare/train.parquet").names if name in NAMES] == NAMES
    assert CONDITION in pq.read_schema("run/density/test/density.parquet").names
    for command in (["sample", "3"], ["outliers", "--top", "3", "--out", "-"]):
        (header, *rows) = csv.reader(io.StringIO(run(*command)[0]))
        assert set(NAMES) <= set(header)
        assert {row[header.index(CONDITION)] for row in rows} <= set(CLASSES)
    found = json.loads(run("outliers", "--top", "1", "--json")[0])["outliers"][0]
    assert set(NAMES) <= set(found)

    page = Path("run/evaluate/test/report.html").read_text("utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not {"\x1b", "\x07", "\u202e"} & set(page)
    picture = Path("map.svg").read_bytes()
    ElementTree.fromstring(picture)
    assert b"\\x1b[31mred" in picture


def test_an_error_keeps_its_lines_whatever_a_name_says(bayesnde: Callable, hostile: Path) -> None:
    outcome = bayesnde("prepare", "d.csv", "--drop", "q")
    assert outcome.code == 2
    assert _is_harmless(outcome.err)
    what, found, hint = outcome.err[outcome.err.index("error:") :].strip().split("\n")
    assert what == "error: --drop: there is no column 'q'"
    assert found.startswith(
        "  columns: \\x1b[31mred\\x1b[0m, <script>alert('a')</script>, n\\nhint: delete everything, long"
    )
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("name", ["x_scaled", "verdict"])
def test_a_name_of_our_own_is_refused_unless_the_column_is_left_out(
    name: str, bayesnde: Callable, hostile: Path
) -> None:
    text = Path("d.csv").read_text().replace(ESCAPE, name)
    Path("d.csv").write_text(text)
    refused = bayesnde("prepare", "d.csv", "--condition", CONDITION)
    assert refused.code == 2
    assert f"error: column '{name}' has a name that bayesnde writes itself\n" in refused.err
    assert bayesnde("prepare", "d.csv", "--condition", CONDITION, "--drop", name, "--scale", "none").code == 0
