"""Images in the stages after `prepare`, in the report and in the answers."""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import norm

import fake_engine
import fake_model
import fake_training
import linear_model
from bayesnde_cli.model.stack import MODEL
from bayesnde_cli.report.collect import ReportData, Subject
from bayesnde_cli.report.page import render
from bayesnde_cli.report.sheets import ImageSheets, SheetRow, collect_images
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.scaling.column_map import Affine, Logit, Noise
from bayesnde_cli.stages.measures import bits_figures, model_figures, scale_edges
from bayesnde_cli.tables.columns import ImageShape, Kind
from bayesnde_cli.tables.model_rows import read_split
from bayesnde_cli.tables.schema import Feature
from fake_engine import SMALL

SHAPE = ImageShape(2, 2)
NAMES = SHAPE.pixel_names()
IMAGES = np.random.default_rng(1).integers(0, 256, (300, 2, 2), np.uint8)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images of two classes and their run, with stand-ins for its model. Not to be written to."""
    from bayesnde_cli.cli.main import run

    folder = tmp_path_factory.mktemp("images")
    np.savez(folder / "a.npz", images=IMAGES, k=np.arange(300) % 2)
    assert run(["prepare", str(folder / "a.npz"), "--condition", "k", "--run", str(folder / "run"), "-q"]) == 0
    fake_engine.pretend_refined(folder / "run")
    return folder


@pytest.fixture
def run(prepared: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


@pytest.fixture
def model(linear: list) -> linear_model.LinearModel:
    """A linear model of four pixels, in place of the one for three columns."""
    rng = np.random.default_rng(2)
    model = linear_model.LinearModel(
        rng.normal(size=(4, 2)), rng.normal(size=4), np.array([0.3, 0.2, 0.5, 0.4]), np.array([-0.5, 0.7])
    )
    linear_model.install(model)
    return model


def test_a_run_of_images_has_no_other_members(bayesnde: Callable, prepared: Path, tmp_path: Path) -> None:
    run = tmp_path / "own"
    shutil.copytree(prepared / "run/prepare", run / "prepare")
    with fake_training.installed():
        warm = bayesnde("warmstart", "--run", run, "--epochs=1", "--width=4")
        assert warm.code == 0, warm.err
        outcome = bayesnde("refine", "--run", run, "--epochs=1", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["members"] == {MODEL: 1.0}


def test_outliers_have_their_pixels_whether_they_were_prepared_or_are_new(
    bayesnde: Callable, engines: list, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "o.parquet"
    for data in ([], [tmp_path / "a.npz"]):
        assert bayesnde("density", *data, "--run", run, *SMALL).code == 0
    outcome = bayesnde("outliers", "--run", run, "--out", out)
    assert outcome.code == 0, outcome.err
    found = pq.read_table(out)
    assert found.column_names == ["rank", "row_id", "log_density", "mc_se", "verdict", *NAMES, "k"]
    pixels = np.stack([found[name].to_numpy() for name in NAMES], axis=1)
    assert np.array_equal(pixels, IMAGES.reshape(-1, 4)[found["row_id"].to_numpy()])
    outcome = bayesnde("outliers", tmp_path / "a.npz", "--run", run, "--out", tmp_path / "n.parquet")
    assert outcome.code == 0, outcome.err
    new = pq.read_table(tmp_path / "n.parquet")
    assert new.schema.field("px_1_1").type == found.schema.field("px_1_1").type
    pixels = np.stack([new[name].to_numpy() for name in NAMES], axis=1)
    assert np.array_equal(pixels, IMAGES.reshape(-1, 4)[new["row_id"].to_numpy()])


def test_prepared_and_new_images_have_the_same_density(
    bayesnde: Callable, model: linear_model.LinearModel, run: Path, tmp_path: Path
) -> None:
    outcome = bayesnde("classify", tmp_path / "a.npz", "--run", run, "--out", tmp_path / "c.parquet")
    assert outcome.code == 0, outcome.err
    found = {row["row_id"]: row["log_density"] for row in pq.read_table(tmp_path / "c.parquet").to_pylist()}
    assert bayesnde("classify", "--run", run, "--out", tmp_path / "t.parquet").code == 0
    tested = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert len(tested) == 30
    assert [row["log_density"] for row in tested] == [found[row["row_id"]] for row in tested]


def test_a_sample_is_of_bytes_and_can_be_scored_as_new_images(
    bayesnde: Callable, model: linear_model.LinearModel, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "s.parquet"
    assert bayesnde("sample", 50, "--with-density", "--run", run, "--out", out).code == 0
    sample = pq.read_table(out)
    pixels = np.stack([sample[name].to_numpy() for name in NAMES], axis=1)
    assert (pixels.min() >= 0, pixels.max() <= 255, len(np.unique(pixels)) > 20) == (True, True, True)
    assert np.isfinite(sample["log_density"].to_numpy()).all()
    outcome = bayesnde("classify", out, "--run", run, "--out", tmp_path / "c.parquet")
    assert outcome.code == 0, outcome.err


def test_a_grid_of_two_pixels_has_the_probability_of_every_byte_and_ends_where_bytes_end(
    bayesnde: Callable, model: linear_model.LinearModel, run: Path, tmp_path: Path
) -> None:
    grid = ("grid", "px_1_1", "px_2_2", "--run", run, "--out", tmp_path / "g.parquet", "--draws", 8192)
    outcome = bayesnde(*grid, "--points", 300, "--condition", 0)
    assert outcome.code == 0, outcome.err
    mass = np.exp(pq.read_table(tmp_path / "g.parquet")["log_density"].to_numpy()).reshape(256, 256)
    assert mass.sum() == pytest.approx(1.0, abs=1e-6)
    # the probability of a byte of one pixel, in closed form: the normal's over the cell of the byte
    edges = Logit().forward(np.arange(256.0), np.full(256, 1e-300))[0]
    mean, sd = model.mean(0)[0], np.sqrt(model.covariance[0, 0])
    below = norm.cdf(np.append(edges[1:], np.inf), mean, sd)
    # 8,192 latents: the distribution function is good to about 1/sqrt(8192)
    assert np.abs(np.cumsum(mass.sum(axis=1)) - below).max() < 0.03
    outcome = bayesnde(*grid, "--points", 400, "--range", "250,300,-20,3")
    assert outcome.code == 0, outcome.err
    found = pq.read_table(tmp_path / "g.parquet")
    assert sorted(set(found["px_1_1"].to_pylist())) == [250, 251, 252, 253, 254, 255]
    assert sorted(set(found["px_2_2"].to_pylist())) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        (
            "--range",
            "260,300,0,3",
            "error: --range: there is no whole number between 260 and 300\n"
            "  column 'px_1_1' holds whole numbers from 0 to 255\nhint: give a wider range\n",
        ),
        (
            "--at",
            "px_1_2=256",
            "error: --at: column 'px_1_2' takes a whole number from 0 to 255\n"
            "  value: '256'\nhint: correct the value\n",
        ),
    ],
)
def test_a_grid_beyond_bytes_is_refused(
    option: str, value: str, error: str, bayesnde: Callable, model: linear_model.LinearModel, run: Path
) -> None:
    outcome = bayesnde("grid", "px_1_1", "px_2_2", option, value, "--run", run)
    assert outcome.code == 2
    assert outcome.err.endswith(error)


@pytest.mark.parametrize("column_map", [Logit(), Affine(0.0, 1.0, Noise()), Affine(0.0, 1.0, Noise(0.0, 1.0))])
def test_pictures_cut_the_model_s_space_where_the_cells_of_values_end(column_map: Affine | Logit) -> None:
    edges = np.array([0.0, 7.0, 256.0]) - 0.5  # halfway between values
    values, fraction = np.array([0.0, 7.0, 255.0]), np.array([0.0, 0.0, 1.0])
    found = scale_edges(Feature("px_1_1", Kind.LATTICE, (), column_map), edges)
    inner = column_map.forward(values, np.clip(fraction, 1e-9, 1 - 1e-9))[0]
    if isinstance(column_map, Logit):  # there is nothing below 0 and above 255
        inner[0], inner[-1] = -np.inf, np.inf
    np.testing.assert_allclose(found, inner, atol=1e-6)


def test_evaluate_and_its_report_know_images_and_bits_per_dimension(
    bayesnde: Callable, engines: list, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_model.install(monkeypatch, fake_model.NormalModel(n_columns=4))
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    options = ("--accuracy-rows", 0, "--generated-rows", 60, "--typicality-rows", 60)
    outcome = bayesnde("evaluate", "--run", run, *options, "--require", "bits_per_dimension<=1000")
    assert outcome.code == 0, outcome.err
    assert "\nno Gaussian mixtures: too slow for images of 4 pixels\n" in outcome.out
    metrics = json.loads((run / "evaluate/test/metrics.json").read_text())
    cells = np.stack(pq.read_table(run / "prepare/test.parquet")["image"].to_numpy()).astype("<f8")
    assert metrics["rows"]["sha256"] == hashlib.sha256(cells.tobytes()).hexdigest()
    assert list(metrics["baselines"]) == ["gaussian", "kernel_density"]
    page = (run / "evaluate/test/report.html").read_text("utf-8")
    for text in (
        "No Gaussian mixtures: too slow for images of 4 pixels.",
        "images of 2 x 2, given k (2 classes)",
        "Images have no histograms or pairs of features",
        "Images of 2 x 2: `bayesnde outliers` writes their pixels.",
        "bits per dimension</span>",
    ):
        assert text in page
    sections = re.findall('<section id="([a-z]+)"', page)
    assert sections.index("ends") - sections.index("images") == 1
    assert not {"pairs", "marginals", "map"} & {*sections}
    log_density = pq.read_table(run / "density/test/density.parquet")["log_density"].to_numpy()
    bits = -log_density / (4 * math.log(2))  # of each image
    assert metrics["bits_per_dimension"] == pytest.approx(bits.mean())
    assert metrics["bits_per_dimension_se"] == pytest.approx(bits.std(ddof=1) / math.sqrt(len(bits)))
    figures = f"{bits.mean():.4f} ± {2 * metrics['bits_per_dimension_se']:.4f}"
    assert f"\nbits per dimension: {figures} (less is better)\n" in outcome.out


def test_a_uniform_density_of_bytes_has_eight_bits_per_dimension() -> None:
    mean = {"mean_log_density": -4 * math.log(256.0), "mean_log_density_se": 0.0}
    assert bits_figures(mean, 4) == {"bits_per_dimension": pytest.approx(8.0), "bits_per_dimension_se": 0.0}
    nothing = bits_figures({"mean_log_density": None, "mean_log_density_se": None}, 4)
    assert nothing == {"bits_per_dimension": None, "bits_per_dimension_se": None}


def _sheets(layout: RunLayout, set_name: str, model: Any) -> ImageSheets:
    generated = model_figures(model, layout, set_name).images
    assert generated is not None
    return collect_images(layout, set_name, read_split(layout, "train").x, generated)


def _shown(rows: list[SheetRow]) -> dict[str, np.ndarray]:
    """The grey of the images of each row, (images, 4)."""
    return {row.name: np.array([picture.pixels[..., 0].ravel() for picture in row.pictures]) for row in rows}


@pytest.mark.parametrize("is_new", [False, True])
def test_a_report_shows_images_of_each_class_and_those_at_both_ends(
    is_new: bool, bayesnde: Callable, engines: list, run: Path, tmp_path: Path
) -> None:
    data = [tmp_path / "a.npz"] if is_new else []
    assert bayesnde("density", *data, "--run", run, *SMALL).code == 0
    layout = RunLayout(run)
    set_name = next(name for name in layout.sets("density") if is_new == (name != "test"))
    sheets = _sheets(layout, set_name, Bright())
    table = pq.read_table(layout.density_file(set_name)).sort_by("log_density").to_pylist()
    for label in "01":
        own = [row for row in table if str(row["k"]) == label]
        ends = [IMAGES.reshape(-1, 4)[[row["row_id"] for row in part]] for part in (own[::-1][:5], own[:5])]
        assert np.array_equal(_shown(sheets.highest)[label], ends[0])
        assert np.array_equal(_shown(sheets.lowest)[label], ends[1])
        some = {tuple(image) for image in _shown(sheets.real)[label].tolist()}
        assert len(some) == 8
        assert some <= {tuple(image) for image in IMAGES.reshape(-1, 4)[[row["row_id"] for row in own]].tolist()}
        # the stand-in's images are as bright as their class
        assert np.array_equal(_shown(sheets.generated)[label], np.full((8, 4), {"0": 128, "1": 225}[label]))
    (first, *_), row = next(row.pictures for row in sheets.lowest if row.name == "1"), own[0]
    assert first.hint == f"row {row['row_id'] + 1}, log-density {row['log_density']:,.3f}"
    assert first.caption == f"{row['log_density']:,.1f}"
    assert (sheets.size, sheets.white) == ("2 x 2", 255)


class Bright(fake_model.NormalModel):
    """Images without noise: the logit of every pixel is twice the position of the class."""

    def simulate(self, n_rows: int, y: np.ndarray | None, seed: int) -> np.ndarray:
        assert y is not None
        return np.repeat(2.0 * y.argmax(axis=1)[:, None], 4, axis=1).astype(np.float32)


def test_without_classes_the_images_are_in_rows_of_all(bayesnde: Callable, engines: list, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", IMAGES)
    run = tmp_path / "plain"
    assert bayesnde("prepare", tmp_path / "b.npy", "--run", run).code == 0
    fake_engine.pretend_refined(run)
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    sheets = _sheets(RunLayout(run), "test", fake_model.NormalModel(n_columns=4))
    sizes = {name: [len(row.pictures) for row in getattr(sheets, name)] for name in ("real", "generated", "lowest")}
    assert sizes == {"real": [8, 8, 8, 6], "generated": [8] * 5, "lowest": [5] * 5}  # of 30 test images
    assert {row.name for row in sheets.real} == {""}
    page = render(ReportData(Subject("t", "test", n_train=300, n_rows=30, n_features=4), images=sheets))
    assert "30 rows scored (test), images of 2 x 2, 300 training rows" in page
    assert (
        "<code>bayesnde density new.npz\nbayesnde outliers --top 20\nbayesnde sample 100 --out sheet.png</code>" in page
    )
