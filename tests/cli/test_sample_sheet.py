"""`bayesnde sample` of images, as a sheet of pictures and as rows; and of every class."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import fake_engine
import linear_model
from bayesnde_cli.data.image import ImageShape
from png_pixels import decoded_png

NAMES = ImageShape(2, 2).pixel_names()
SIDE, GAP = 80, 4
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def model(linear: list) -> linear_model.LinearModel:
    """A linear model of four pixels, in place of the one for three columns."""
    model = linear_model.LinearModel(
        np.random.default_rng(2).normal(size=(4, 2)), np.zeros(4), np.full(4, 0.3), np.array([-2.0, 0.0, 2.0])
    )
    linear_model.install(model)
    return model


def _run(bayesnde: Callable, folder: Path, *, highest: int = 256, is_conditional: bool = True) -> Path:
    images = np.random.default_rng(1).integers(0, highest, (300, 2, 2), np.uint8)
    images[0] = highest - 1
    np.savez(folder / "a.npz", images=images, **({"k": np.array(list("abc") * 100)} if is_conditional else {}))
    options = ["--condition", "k"] if is_conditional else []
    assert bayesnde("prepare", folder / "a.npz", *options, "--run", folder / "images").code == 0
    fake_engine.pretend_refined(folder / "images")
    return folder / "images"


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _pixels(rows: list[dict[str, str]]) -> np.ndarray:
    """(rows, 2, 2)"""
    return np.array([[int(row[name]) for name in NAMES] for row in rows]).reshape(-1, 2, 2)


def _images(sheet: np.ndarray, n_rows: int, n_columns: int) -> np.ndarray:
    """One pixel of each block of a sheet, (rows, columns, 2, 2)."""
    assert sheet.shape == (GAP + n_rows * (SIDE + GAP), GAP + n_columns * (SIDE + GAP), 3)
    starts = [[GAP + index * (SIDE + GAP) for index in range(n)] for n in (n_rows, n_columns)]
    return np.array([[sheet[top : top + SIDE : 40, left : left + SIDE : 40, 0] for left in starts[1]]
                     for top in starts[0]])  # fmt: skip


def test_a_sheet_has_a_row_for_each_class_the_densest_first(
    bayesnde: Callable, model: linear_model.LinearModel, tmp_path: Path
) -> None:
    run = _run(bayesnde, tmp_path)
    options = ("5", "--condition", "all", "--order", "density", "--run", run)
    outcome = bayesnde("sample", *options, "--out", tmp_path / "s.png")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.endswith(f"{tmp_path}/s.png: 15 images of 2 x 2, a row for each class, from the top a, b, c\n")
    rows = _rows(bayesnde("sample", *options).out)
    shown = _images(decoded_png((tmp_path / "s.png").read_bytes()), 3, 5)
    for index, name in enumerate("abc"):
        own = [row for row in rows if row["k"] == name]
        densities = [float(row["log_density"]) for row in own]
        assert densities == sorted(densities, reverse=True)
        assert np.array_equal(shown[index], _pixels(own))


def test_without_an_order_images_are_shown_as_drawn(
    bayesnde: Callable, model: linear_model.LinearModel, tmp_path: Path
) -> None:
    run = _run(bayesnde, tmp_path)
    assert bayesnde("sample", "4", "--condition", "all", "--run", run, "--out", tmp_path / "s.png").code == 0
    rows = _rows(bayesnde("sample", "4", "--condition", "all", "--run", run).out)
    assert [row["k"] for row in rows] == list("abc") * 4  # in turn
    shown = _images(decoded_png((tmp_path / "s.png").read_bytes()), 3, 4)
    assert np.array_equal(shown, _pixels(rows).reshape(4, 3, 2, 2).swapaxes(0, 1))
    longer = bayesnde("sample", "9", "--condition", "all", "--run", run).out
    assert longer.startswith(bayesnde("sample", "4", "--condition", "all", "--run", run).out)


@pytest.mark.parametrize("options", [["--condition", "b"], []])
def test_one_class_or_none_is_a_square(
    options: list[str], bayesnde: Callable, model: linear_model.LinearModel, tmp_path: Path
) -> None:
    run = _run(bayesnde, tmp_path, is_conditional=bool(options))
    outcome = bayesnde("sample", "7", *options, "--run", run, "--out", tmp_path / "S.PNG")
    assert outcome.err.endswith(f"{tmp_path}/S.PNG: 7 images of 2 x 2\n")
    shown = _images(decoded_png((tmp_path / "S.PNG").read_bytes()), 3, 3).reshape(9, 2, 2)
    assert np.array_equal(shown[:7], _pixels(_rows(bayesnde("sample", "7", *options, "--run", run).out)))


def test_an_svg_tells_class_density_and_error(
    bayesnde: Callable, model: linear_model.LinearModel, tmp_path: Path
) -> None:
    run = _run(bayesnde, tmp_path)
    options = ("2", "--condition", "all", "--with-density", "--run", run)
    assert bayesnde("sample", *options, "--out", tmp_path / "s.svg").code == 0
    found = ElementTree.fromstring((tmp_path / "s.svg").read_bytes())
    assert [item.text for item in found.iter(f"{SVG}text")] == ["a", "b", "c"]
    rows = sorted(_rows(bayesnde("sample", *options).out), key=lambda row: row["k"])
    hints = [image.findtext(f"{SVG}title") for image in found.iter(f"{SVG}image")]
    assert hints == [
        f"{row['k']}, log-density {float(row['log_density']):,.3f}, error {float(row['mc_se']):.3f}" for row in rows
    ]


def test_dark_images_are_shown_brighter_and_that_is_told(
    bayesnde: Callable, model: linear_model.LinearModel, tmp_path: Path
) -> None:
    run = _run(bayesnde, tmp_path, highest=17)
    outcome = bayesnde("sample", "6", "--run", run, "--out", tmp_path / "s.png")
    assert outcome.err.endswith("s.png: 6 images of 2 x 2; white is 16, the highest value of training\n")


def test_a_sheet_of_a_table_or_of_too_many_images_is_refused_before_the_model_is_opened(
    bayesnde: Callable, run: Path, linear: list, tmp_path: Path
) -> None:
    outcome = bayesnde("sample", "5", "--run", run, "--out", "s.svg")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == (
        "error: --out s.svg: a sheet of pictures is made of images\n"
        "  the run is of a table, 3 columns\n"
        "hint: write the rows: --out FILE.csv, .parquet or .jsonl\n"
    )
    images = _run(bayesnde, tmp_path)
    outcome = bayesnde("sample", "3334", "--condition", "all", "--run", images, "--out", "s.png")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --out s.png: too many images for a sheet\n"
        "  10,002 images, at most 10,000\n"
        "hint: make fewer, or write them as rows: --out FILE.parquet\n"
    )
    assert linear == []


def test_every_class_of_a_table_has_so_many_rows(bayesnde: Callable, run: Path, linear: list) -> None:
    rows = _rows(bayesnde("sample", "700", "--condition", "all", "--run", run).out)  # more than a block
    assert Counter(row["k"] for row in rows) == {"u": 700, "v": 700}
    cells = [tuple(row[name] for name in "ab") for row in rows]
    assert len(set(cells)) == 1400  # no class has the rows of another


def test_all_is_a_class_where_one_is_called_so_and_nothing_without_classes(
    bayesnde: Callable, model: linear_model.LinearModel, tmp_path: Path
) -> None:
    lines = [f"{index % 7},{index},{index % 5},{index % 11},{('all', 'b', 'c')[index % 3]}" for index in range(100)]
    (tmp_path / "t.csv").write_text("p,q,r,s,k\n" + "\n".join(lines) + "\n")
    run = tmp_path / "t"
    assert bayesnde("prepare", tmp_path / "t.csv", "--condition", "k", "--run", run).code == 0
    fake_engine.pretend_refined(run)
    rows = _rows(bayesnde("sample", "6", "--condition", "all", "--run", run).out)
    assert [row["k"] for row in rows] == ["all"] * 6
    plain = _run(bayesnde, tmp_path, is_conditional=False)
    outcome = bayesnde("sample", "6", "--condition", "all", "--run", plain)
    assert outcome.code == 2
    assert re.match("error: --condition needs a model of p\\(x \\| y\\)\n", outcome.err)
