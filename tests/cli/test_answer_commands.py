"""`sample`, `outliers`, `classify` and `grid` as a user meets them."""

import base64
import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import fake_engine
import linear_model

SMALL = ["--set", "density.block_rows=16", "--set", "density.draws=4", "--set", "density.chains=2"]
FEW = ["--points", "20", "--draws", "4000"]


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _written(bayesnde: Callable, folder: Path, *command: object) -> list[dict]:
    """The rows that a command writes, the same as CSV, Parquet and JSON lines."""
    for ending in ("csv", "parquet", "jsonl"):
        outcome = bayesnde(*command, "--out", folder / f"t.{ending}")
        assert outcome.code == 0, outcome.err
    table = pq.read_table(folder / "t.parquet").to_pylist()
    assert [json.loads(line) for line in (folder / "t.jsonl").read_text().splitlines()] == table
    lines = _rows((folder / "t.csv").read_text())
    assert [float(row["a"]) for row in lines] == [row["a"] for row in table]
    return table


def test_a_sample_has_the_same_rows_in_every_format_and_in_large_row_groups(
    bayesnde: Callable, run: Path, tmp_path: Path, linear: list
) -> None:
    table = _written(bayesnde, tmp_path, "sample", "30", "--run", run)
    assert all(isinstance(row["n"], int) and row["k"] in ("u", "v") for row in table)
    outcome = bayesnde("sample", "70000", "--run", run, "--out", tmp_path / "s.parquet")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.endswith(f"{tmp_path}/s.parquet: 70,000 rows, 4 columns\n")
    file = pq.ParquetFile(tmp_path / "s.parquet")
    assert [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)] == [65_536, 4_464]


def test_a_seed_and_a_class_name_the_rows_of_a_sample(bayesnde: Callable, run: Path, linear: list) -> None:
    long = bayesnde("sample", "1000", "--run", run, "--seed", "3").out
    assert long.startswith(bayesnde("sample", "100", "--run", run, "--seed", "3").out)
    assert bayesnde("sample", "1000", "--run", run).out != long
    assert {row["k"] for row in _rows(long)} == {"u", "v"}
    assert {row["k"] for row in _rows(bayesnde("sample", "40", "--run", run, "--condition", "v").out)} == {"v"}
    every = _rows(bayesnde("sample", "700", "--condition", "all", "--run", run).out)  # more than a block
    assert [row["k"] for row in every] == ["u", "v"] * 700
    assert len({(row["a"], row["b"]) for row in every}) == 1400  # no class has the rows of another


def test_sampled_rows_with_their_density_and_in_its_order(bayesnde: Callable, run: Path, linear: list) -> None:
    scored = _rows(bayesnde("sample", "20", "--run", run, "--with-density").out)
    plain = _rows(bayesnde("sample", "20", "--run", run).out)
    assert [{name: row[name] for name in "abnk"} for row in scored] == plain
    assert list(scored[0]) == ["a", "b", "n", "k", "log_density", "mc_se", "reliable"]
    ordered = _rows(bayesnde("sample", "20", "--run", run, "--order", "density").out)
    assert ordered == sorted(scored, key=lambda row: -float(row["log_density"]))
    assert ordered != scored


def test_ten_outliers_are_shown_or_written(bayesnde: Callable, run: Path, tmp_path: Path, engines: list) -> None:
    outcome = bayesnde("outliers", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert " ".join(lines[0].split()) == "rank row_id log_density mc_se verdict a b n name k true_log_density"
    assert [line.split()[0] for line in lines[1:11]] == [str(rank) for rank in range(1, 11)]
    assert lines[11].startswith("test: the 10 of lowest density among 62 rows")
    assert bayesnde("outliers", "--run", run).out == outcome.out  # densities on disk are used
    table = _written(bayesnde, tmp_path, "outliers", "--run", run, "--top", "5")
    found = json.loads(bayesnde("outliers", "--run", run, "--top", "5", "--json").out)
    assert found == {"set_name": "test", "n_rows": 62, "n_ranked": 62, "outliers": table}
    fake_engine.pretend_refined(run, b"other weights")
    stale = bayesnde("outliers", "--run", run)
    assert stale.code == 3
    assert stale.err.startswith("error: density/test was made from files that have changed since\n")


def test_outliers_of_a_pipe_are_joined_to_its_columns(
    bayesnde: Callable, run: Path, engines: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = "a,b,n,k,name,true_log_density,note\n" + "".join(f"{i / 9},{i + 1.5},{i},u,x{i},-1,m{i}\n" for i in range(9))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
    rows = _rows(bayesnde("outliers", "-", "--run", run, *SMALL, "--out", "-").out)
    assert len(rows) == 9
    assert all(row["note"] == f"m{row['row_id']}" for row in rows)


def test_probabilities_of_classes_with_a_summary(bayesnde: Callable, run: Path, tmp_path: Path, linear: list) -> None:
    outcome = bayesnde("classify", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    rows = _rows(outcome.out)
    assert len(rows) == 62
    assert all(float(row["p_u"]) + float(row["p_v"]) == pytest.approx(1.0) for row in rows)
    right = sum(row["predicted"] == row["k"] for row in rows)
    assert f"{100 * right / 62:.1f} % right, 62 reliable, 18 gradients a row\n" in outcome.err
    uniform = _rows(bayesnde("classify", "--run", run, *SMALL, "--prior", "uniform").out)
    assert [row["p_u"] for row in uniform] != [row["p_u"] for row in rows]
    (tmp_path / "new.csv").write_text("b,a,n\n1.5,0.2,3\n0.5,1.2,\n")
    out = tmp_path / "c.jsonl"
    found = json.loads(bayesnde("classify", tmp_path / "new.csv", "--run", run, *SMALL, "--out", out, "--json").out)
    assert (found["n_rows"], found["n_reliable"], found["accuracy"]) == (2, 2, None)
    assert found["set_name"].startswith("new-")
    assert sum(found["classes"].values()) == 2
    assert [json.loads(line)["row_id"] for line in out.read_text().splitlines()] == [0, 1]
    assert not list(run.glob("density/*"))  # nothing is left in the run


def test_a_grid_is_a_table_and_a_summary(bayesnde: Callable, run: Path, linear: list) -> None:
    outcome = bayesnde("grid", "a", "b", "--run", run, *FEW)
    assert outcome.code == 0, outcome.err
    rows = _rows(outcome.out)
    assert (len(rows), list(rows[0])) == (400, ["a", "b", "log_density", "mc_se", "reliable"])
    assert "log p(a, b): 20 by 20 points, " in outcome.err
    assert bayesnde("grid", "a", "b", "--run", run, *FEW).out == outcome.out
    assert bayesnde("grid", "a", "b", "--run", run, *FEW, "--seed", "9").out != outcome.out
    found = json.loads(bayesnde("grid", "a", "n", "--run", run, *FEW, "--range", "-12,14,-9,60", "--json").out)
    assert (found["title"], found["n_first"]) == ("log p(a, n)", 20)
    assert found["share"] == pytest.approx(1.0, abs=0.1)


def test_pictures_of_a_grid(bayesnde: Callable, run: Path, tmp_path: Path, linear: list) -> None:
    path = tmp_path / "map.svg"
    outcome = bayesnde("grid", "a", "n", "--run", run, *FEW, "--condition", "v", "--at", "b=2", "--picture", path)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("log p(a, n | k = v, b = 2.0): 20 by ")
    root = ElementTree.fromstring(path.read_bytes())
    words = [text for element in root.iter() if element.tag.endswith("text") and (text := element.text)]
    assert {"log p(a, n | k = v, b = 2.0)", "a", "n", "log-density, nats"} <= set(words)
    assert len([word for word in words if word.lstrip("-").replace(".", "").isdecimal()]) >= 9
    pictures = [element.attrib["href"] for element in root.iter() if element.tag.endswith("image")]
    assert all(picture.startswith("data:image/png;base64,") for picture in pictures)
    sizes = [Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2]))).size for picture in pictures]
    assert 20 in [width for width, _ in sizes]  # the map, one pixel per point; the other image is the colour scale

    path, table = tmp_path / "map.png", tmp_path / "g.csv"
    assert bayesnde("grid", "a", "b", "--run", run, *FEW, "--picture", path, "--out", table).code == 0
    pixels = np.asarray(Image.open(path))
    assert pixels.shape == (600, 600, 3)
    brightness = pixels.sum(axis=2, dtype=int)[15::30, 15::30]  # the middle of each point
    log_density = np.array([float(row["log_density"]) for row in _rows(table.read_text())]).reshape(20, 20)
    row, column = np.unravel_index(brightness.argmax(), brightness.shape)
    assert (column, 19 - row) == np.unravel_index(log_density.argmax(), log_density.shape)


def test_a_reader_that_has_seen_enough_is_no_error(fitted: Path) -> None:
    words = f"{sys.executable} {linear_model.__file__} sample 100000 --run {fitted} -q"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {words} | head -3"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(_rows(done.stdout)) == 2


BOTH_ON_STDOUT = "--json and --out - both write to stdout\n  both\nhint: give --out FILE, or leave out --json\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sample 0", "invalid value for 'N': "),
        ("sample ten", "invalid value for 'N'"),
        ("sample 5 --order rank", "--order cannot be 'rank'\n  choices: density\nhint: use one of the choices\n"),
        ("sample 5 --condition w", "--condition: there is no class 'w'\n  classes: u, v\n"),
        ("sample 5 --out s.xlsx", "--out s.xlsx: no format belongs to the ending '.xlsx'\n"),
        (
            "sample 5 --out s.svg",
            "--out s.svg: only images can be drawn as a sheet\n  the run is of a table, 3 columns\n"
            "hint: write the rows: --out FILE.csv, .parquet or .jsonl\n",
        ),
        ("outliers --top 3 --quantile 0.1", "--top and --quantile both say how many rows\n  both\n"),
        ("outliers --top 0", "invalid value for '--top': "),
        ("outliers --quantile 1.5", "--quantile is a share\n  --quantile 1.5\n"),
        ("outliers --observed 0", "invalid value for '--observed': "),
        ("outliers --format csv", "--format says how to write a table\n  no --out\n"),
        ("outliers --json --out -", BOTH_ON_STDOUT),
        ("outliers none.csv", "none.csv does not exist\n"),
        ("classify --prior u=1", "--prior names 1 of 2 classes\n  missing: v\n"),
        ("classify --json", BOTH_ON_STDOUT),
        ("classify --format xml", "--format cannot be 'xml'\n"),
        ("classify none.csv", "none.csv does not exist\n"),
        ("grid a c", "a grid: there is no feature 'c'\n  features: a, b, n\n"),
        ("grid a b --picture map.jpg", "--picture map.jpg: the ending '.jpg' is not that of a picture\n"),
        ("grid a b --draws 0", "invalid value for '--draws': "),
        ("grid a b --format csv --picture m.svg", "--format says how to write a table\n"),
        ("grid a b --condition w", "--condition: there is no class 'w'\n"),
        ("grid a b --at n=x", "--at: column 'n' takes a whole number\n"),
        ("grid a", "missing argument 'COL2'"),
    ],
)
def test_a_wrong_request_is_refused_before_the_model_is_opened(
    command: str, message: str, bayesnde: Callable, fitted: Path, linear: list
) -> None:
    outcome = bayesnde(*command.split(), "--run", fitted)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {message}")
    assert linear == []


def test_questions_about_classes_need_a_condition(bayesnde: Callable, examples: Path, tmp_path: Path) -> None:
    run = tmp_path / "r"
    assert bayesnde("prepare", examples / "faithful.csv", "--scale", "standard", "--run", run).code == 0
    fake_engine.pretend_refined(run)
    begin = "begin a run with `bayesnde prepare DATA --condition COL`\n"
    for command, what, hint in (
        (["sample", "5", "--condition", "u"], "--condition", f"leave --condition out, or {begin}"),
        (["sample", "5", "--condition", "all"], "--condition", f"leave --condition out, or {begin}"),
        (["classify"], "classify", begin),
    ):
        outcome = bayesnde(*command, "--run", run)
        found = "the run was prepared without a condition"
        assert (outcome.code, outcome.err) == (2, f"error: {what} needs a model of p(x | y)\n  {found}\nhint: {hint}")


@pytest.mark.parametrize("command", ["sample 5 --out file/s.csv", "grid a b --draws 400 --picture file/s.csv.svg"])
def test_a_file_that_cannot_be_written_is_refused(
    command: str, bayesnde: Callable, fitted: Path, linear: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    outcome = bayesnde(*command.split(), "--run", fitted)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: cannot write {tmp_path}/file/s.csv")
