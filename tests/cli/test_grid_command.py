"""`bayesnde grid` as a user meets it: a table, and a picture that a browser can read."""

import csv
import io
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import linear_model

FEW = ["--points", "20", "--draws", "4000"]
pytestmark = pytest.mark.usefixtures("linear")


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _pixels(data: bytes) -> np.ndarray:
    """The colours of a PNG without filters."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", data[start - 8 : start - 4])
    lines = np.frombuffer(zlib.decompress(data[start : start + length]), np.uint8).reshape(height, 1 + 3 * width)
    return lines[:, 1:].reshape(height, width, 3)


def test_a_table_on_stdout_without_any_option(bayesnde: Callable, run: Path) -> None:
    outcome = bayesnde("grid", "a", "b", "--run", run, *FEW)
    assert outcome.code == 0, outcome.err
    rows = _rows(outcome.out)
    assert len(rows) == 400
    assert list(rows[0]) == ["a", "b", "log_density", "mc_se", "reliable"]
    assert "log p(a, b): 20 by 20 points, " in outcome.err
    assert bayesnde("grid", "a", "b", "--run", run, *FEW).out == outcome.out
    assert bayesnde("grid", "a", "b", "--run", run, *FEW, "--seed", "9").out != outcome.out


def test_a_picture_with_axes(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "map.svg"
    outcome = bayesnde("grid", "a", "n", "--run", run, *FEW, "--condition", "v", "--at", "b=2", "--picture", path)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("log p(a, n | k = v, b = 2.0): 20 by ")
    root = ElementTree.fromstring(path.read_bytes())
    words = [text for element in root.iter() if element.tag.endswith("text") and (text := element.text)]
    assert {"log p(a, n | k = v, b = 2.0)", "a", "n", "log-density"} <= set(words)
    numbers = [word for word in words if word.lstrip("-").replace(".", "").isdecimal()]
    assert len(numbers) >= 9
    (png,) = [e.attrib["href"] for e in root.iter() if e.tag.endswith("image") and float(e.attrib["width"]) > 100]
    assert png.startswith("data:image/png;base64,")


def test_the_brightest_place_of_the_map_is_where_the_density_is_highest(
    bayesnde: Callable, run: Path, tmp_path: Path
) -> None:
    path, table = tmp_path / "map.png", tmp_path / "g.csv"
    assert bayesnde("grid", "a", "b", "--run", run, *FEW, "--picture", path, "--out", table).code == 0
    pixels = _pixels(path.read_bytes())
    assert pixels.shape == (600, 600, 3)
    brightness = pixels.sum(axis=2, dtype=int)[15::30, 15::30]  # the middle of each point
    log_density = np.array([float(row["log_density"]) for row in _rows(table.read_text())]).reshape(20, 20)
    row, column = np.unravel_index(brightness.argmax(), brightness.shape)
    assert (column, 19 - row) == np.unravel_index(log_density.argmax(), log_density.shape)


def test_json_is_for_machines(bayesnde: Callable, run: Path) -> None:
    found = json.loads(bayesnde("grid", "a", "n", "--run", run, *FEW, "--range", "-12,14,-9,60", "--json").out)
    assert (found["title"], found["n_first"]) == ("log p(a, n)", 20)
    assert found["share"] == pytest.approx(1.0, abs=0.1)


def test_a_reader_that_has_seen_enough_is_no_error(run: Path) -> None:
    words = f"{sys.executable} {linear_model.__file__} grid a b --run {run} -q --draws 4000"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {words} | head -2"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("a,b,log_density,mc_se,reliable\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["a", "c"], "error: a grid: there is no feature 'c'\n  features: a, b, n\n"),
        (
            ["a", "b", "--picture", "map.jpg"],
            "error: --picture map.jpg: no kind of picture belongs to the ending '.jpg'\n",
        ),
        (["a", "b", "--draws", "0"], "error: --draws must be 1 at least\n"),
        (["a", "b", "--format", "csv", "--picture", "m.svg"], "error: --format says how to write a table\n"),
        (["a", "b", "--condition", "w"], "error: --condition: there is no class 'w'\n"),
        (["a", "b", "--at", "n=x"], "error: --at: column 'n' takes a whole number\n"),
        (["a"], "error: missing argument 'COL2'"),
    ],
)
def test_what_cannot_be_is_refused(
    options: list[str], message: str, bayesnde: Callable, run: Path, linear: list
) -> None:
    outcome = bayesnde("grid", *options, "--run", run)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(message)
    assert linear == []


def test_a_picture_that_cannot_be_written_is_refused(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = bayesnde("grid", "a", "b", "--run", run, *FEW, "--picture", tmp_path / "file" / "m.svg")
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: cannot write {tmp_path}/file/m.svg\n")
