"""`bayesnde sample` of images, as a sheet of pictures and as rows."""

import csv
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import fake_engine
import linear_model
from bayesnde_cli.tables.columns import ImageShape
from png_pixels import decode_png

NAMES = ImageShape(2, 2).pixel_names()
SIDE, GAP = 80, 4
SVG = "{http://www.w3.org/2000/svg}"
MODEL = linear_model.LinearModel(
    np.random.default_rng(2).normal(size=(4, 2)), np.zeros(4), np.full(4, 0.3), np.array([-2.0, 0.0, 2.0])
)


@pytest.fixture
def model(linear: list) -> list:
    """A linear model of four pixels, in place of the one for three columns; the draws and engines that are opened."""
    return linear_model.install(MODEL)


def _prepare(folder: Path, *, highest: int = 256, is_conditional: bool = True) -> Path:
    from bayesnde_cli.cli.main import run

    images = np.random.default_rng(1).integers(0, highest, (300, 2, 2), np.uint8)
    images[0] = highest - 1
    labels: dict[str, Any] = {"k": np.array(list("abc") * 100)} if is_conditional else {}
    np.savez(folder / "a.npz", images=images, **labels)
    options = ["--condition", "k"] if is_conditional else []
    assert run(["prepare", str(folder / "a.npz"), *options, "--run", str(folder / "images"), "-q"]) == 0
    fake_engine.pretend_refined(folder / "images")
    return folder / "images"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of images with three classes. Not to be written to."""
    return _prepare(tmp_path_factory.mktemp("sheet"))


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _pixels(rows: list[dict[str, str]]) -> np.ndarray:
    """(rows, 2, 2)"""
    return np.array([[int(row[name]) for name in NAMES] for row in rows]).reshape(-1, 2, 2)


def _images(path: Path, n_rows: int, n_columns: int) -> np.ndarray:
    """One pixel of each block of a sheet, (rows, columns, 2, 2)."""
    sheet = decode_png(path.read_bytes())
    assert sheet.shape == (GAP + n_rows * (SIDE + GAP), GAP + n_columns * (SIDE + GAP), 3)
    tops, lefts = ([GAP + index * (SIDE + GAP) for index in range(n)] for n in (n_rows, n_columns))
    return np.array([[sheet[top : top + SIDE : 40, left : left + SIDE : 40, 0] for left in lefts] for top in tops])


def test_a_sheet_has_a_row_for_each_class_as_drawn_or_the_densest_first(
    bayesnde: Callable, model: list, images: Path, tmp_path: Path
) -> None:
    options = ("5", "--condition", "all", "--run", images)
    outcome = bayesnde("sample", *options, "--order", "density", "--out", tmp_path / "s.png")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.endswith(f"{tmp_path}/s.png: 15 images of 2 x 2, a row for each class, from the top a, b, c\n")
    rows, shown = _rows(bayesnde("sample", *options, "--order", "density").out), _images(tmp_path / "s.png", 3, 5)
    for index, name in enumerate("abc"):
        own = [row for row in rows if row["k"] == name]
        densities = [float(row["log_density"]) for row in own]
        assert densities == sorted(densities, reverse=True)
        assert np.array_equal(shown[index], _pixels(own))
    assert bayesnde("sample", *options, "--out", tmp_path / "s.png").code == 0
    rows = _rows(bayesnde("sample", *options).out)
    assert [row["k"] for row in rows] == list("abc") * 5  # in turn
    assert np.array_equal(_images(tmp_path / "s.png", 3, 5), _pixels(rows).reshape(5, 3, 2, 2).swapaxes(0, 1))


def test_one_class_is_a_square_and_an_svg_tells_class_density_and_error(
    bayesnde: Callable, model: list, images: Path, tmp_path: Path
) -> None:
    options = ("7", "--condition", "b", "--run", images)
    outcome = bayesnde("sample", *options, "--out", tmp_path / "S.PNG")
    assert outcome.err.endswith(f"{tmp_path}/S.PNG: 7 images of 2 x 2\n")
    shown = _images(tmp_path / "S.PNG", 3, 3).reshape(9, 2, 2)
    assert np.array_equal(shown[:7], _pixels(_rows(bayesnde("sample", *options).out)))
    with_density = ("2", "--condition", "all", "--with-density", "--run", images)
    assert bayesnde("sample", *with_density, "--out", tmp_path / "s.svg").code == 0
    found = ElementTree.fromstring((tmp_path / "s.svg").read_bytes())
    assert [item.text for item in found.iter(f"{SVG}text")] == ["a", "b", "c"]
    rows = sorted(_rows(bayesnde("sample", *with_density).out), key=lambda row: row["k"])
    hints = [image.findtext(f"{SVG}title") for image in found.iter(f"{SVG}image")]
    assert hints == [
        f"{row['k']}, log-density {float(row['log_density']):,.3f}, s.e. {float(row['mc_se']):.3f}" for row in rows
    ]


def test_dark_images_without_classes_are_shown_brighter_and_that_is_told(
    bayesnde: Callable, model: list, tmp_path: Path
) -> None:
    run = _prepare(tmp_path, highest=17, is_conditional=False)
    outcome = bayesnde("sample", "6", "--run", run, "--out", tmp_path / "s.png")
    assert outcome.err.endswith("s.png: 6 images of 2 x 2; white is 16, the highest value of training\n")


def test_too_many_images_are_refused_before_the_model_is_opened(bayesnde: Callable, model: list, images: Path) -> None:
    outcome = bayesnde("sample", "3334", "--condition", "all", "--run", images, "--out", "s.png")
    assert (outcome.code, model) == (2, [])
    assert outcome.err == (
        "error: --out s.png: too many images for a sheet\n"
        "  10,002 images, at most 10,000\n"
        "hint: draw fewer, or write them as rows: --out FILE.parquet\n"
    )


def test_all_is_a_class_where_one_has_this_name(bayesnde: Callable, model: list, images: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(images, tmp_path / "run"))
    lines = [f"{index % 7},{index},{index % 5},{index % 11},{('all', 'b', 'c')[index % 3]}" for index in range(100)]
    (tmp_path / "t.csv").write_text("p,q,r,s,k\n" + "\n".join(lines) + "\n")
    options = ("--condition", "k", "--scale", "standard", "--run", run, "--restart")
    assert bayesnde("prepare", tmp_path / "t.csv", *options).code == 0
    fake_engine.pretend_refined(run)
    rows = _rows(bayesnde("sample", "6", "--condition", "all", "--run", run).out)
    assert [row["k"] for row in rows] == ["all"] * 6
