"""`prepare` on images: what is written, what is told, and when they are an ordinary table after all."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from bayesnde_cli.runs.files import sha256_json
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.scaling.column_map import Logit
from bayesnde_cli.settings.stage_settings import PrepareSettings
from bayesnde_cli.stages.prepare import image_of
from bayesnde_cli.tables.columns import ImageShape, assign_roles
from bayesnde_cli.tables.model_rows import read_schema
from bayesnde_cli.tables.schema import Schema
from bayesnde_cli.tables.sources import open_sources, sources_of
from scoring_runs import Notes

SPLITS = ("train", "validation", "test")
NOISE = (
    "every pixel has uniform noise, U(0, 1), addressed by image, and goes through a logit: "
    "log-densities are those of value plus noise\n"
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """80 images of 3 x 4 and their labels, NPZ."""
    rng = np.random.default_rng(3)
    path = tmp_path / "small.npz"
    images = rng.integers(0, 256, (80, 3, 4), np.uint8)
    np.savez(path, images=images, label=np.arange(80) % 2, name=np.array([f"r{i}" for i in range(80)]))
    return path


def _schema(run: Path) -> Schema:
    return read_schema(RunLayout(run))


def _tables(run: Path) -> dict[str, pa.Table]:
    return {name: pq.read_table(run / "prepare" / f"{name}.parquet") for name in SPLITS}


def _cells(column: pa.ChunkedArray) -> np.ndarray:
    return np.stack(column.to_numpy())


def test_digits_are_images_with_their_classes_from_file_to_table(bayesnde: Callable, tmp_path: Path) -> None:
    """300 digits of scikit-learn, some of whose pixels are 0 in all of them."""
    run, found = tmp_path / "r", load_digits()
    images, target = found.images[:300], found.target[:300]
    np.savez(tmp_path / "digits.npz", images=images.astype(np.uint8), target=target)
    outcome = bayesnde("prepare", tmp_path / "digits.npz", "--condition", "target", "--run", run)
    assert outcome.code == 0, outcome.err
    assert outcome.out.endswith("240 training, 30 validation and 30 test rows, 64 features\n")
    assert outcome.err == "read as: NPZ, images 300 x 8 x 8, target 300 x 1\n300 images of 8 x 8, 10 classes\n" + NOISE
    schema = _schema(run)
    assert schema.image == ImageShape(8, 8)
    assert schema.roles.features == tuple(feature.name for feature in schema.features) == ImageShape(8, 8).pixel_names()
    assert {feature.map for feature in schema.features} == {Logit()}
    for table in _tables(run).values():
        assert table.column_names == ["row_id", "image", "target", "x_scaled", "log_jacobian"]
        assert table.schema.field("image").type == pa.list_(pa.uint8(), 64)
        rows = table["row_id"].to_numpy()
        pixels = _cells(table["image"])
        assert np.array_equal(pixels, images.reshape(-1, 64)[rows])
        assert np.array_equal(table["target"].to_numpy(), target[rows])
        u = _cells(table["x_scaled"]).astype(np.float64)
        s = 1 / (1 + np.exp(-u))
        fraction = 256 * s - pixels
        # u is float32, and 1e-4 levels are more than its last digit anywhere
        assert (fraction.min() > -1e-4, fraction.max() < 1 + 1e-4) == (True, True)
        assert abs(fraction.mean() - 0.5) < 0.02
        slopes = -np.log(256) - np.log(s) - np.log1p(-s)
        # u is float32: 1e-6 of it at most, times 64 pixels
        np.testing.assert_allclose(table["log_jacobian"].to_numpy(), slopes.sum(axis=1), atol=1e-3)


def test_a_label_without_a_role_is_not_a_feature_and_the_user_is_told(
    small: Path, bayesnde: Callable, tmp_path: Path
) -> None:
    run = tmp_path / "r"
    outcome = bayesnde("prepare", small, "--id", "name", "--run", run)
    assert outcome.code == 0, outcome.err
    assert outcome.err == (
        "read as: NPZ, images 80 x 3 x 4, label 80 x 1, name 80 x 1\n"
        "80 images of 3 x 4\n" + NOISE + "not used: label; this is p(x) of all images, and --condition label is "
        "p(x | label)\n"
    )
    assert len(_schema(run).features) == 12
    assert _tables(run)["train"].column_names == ["row_id", "image", "name", "x_scaled", "log_jacobian"]


def test_the_same_images_give_the_same_bytes_in_any_format(small: Path, bayesnde: Callable, tmp_path: Path) -> None:
    with np.load(small) as stored:
        images, labels = stored["images"], stored["label"].astype(np.uint8)
    np.save(tmp_path / "images.npy", np.asfortranarray(images))
    for name, array in {"images.idx": images, "labels.idx": labels}.items():
        header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (tmp_path / name).write_bytes(header + array.tobytes())
    folder = tmp_path / "png"
    folder.mkdir()
    for index, pixels in enumerate(images):
        Image.fromarray(pixels).save(folder / f"{index:02}.png")
    given = {
        "npz": [small],
        "npy": [tmp_path / "images.npy", tmp_path / "labels.idx"],
        "idx": [tmp_path / "images.idx", tmp_path / "labels.idx"],
        "folder": [folder, tmp_path / "labels.idx"],
    }
    found = set()
    for name, paths in given.items():
        options = ("--split-method", "order", "--split", "0.5,0.25,0.25", "--condition", "label")
        outcome = bayesnde("prepare", *paths, *options, "--run", tmp_path / name)
        assert outcome.code == 0, outcome.err
        rows = [table["row_id"].to_pylist() for table in _tables(tmp_path / name).values()]
        assert rows == [[*range(40)], [*range(40, 60)], [*range(60, 80)]]  # training, validation, test
        table = _tables(tmp_path / name)["train"]
        found.add((_cells(table["x_scaled"]).tobytes(), _cells(table["image"]).tobytes(), tuple(table["label"])))
    assert len(found) == 1


def test_a_folder_is_known_by_its_names_and_contents(bayesnde: Callable, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    for index in range(60):
        path = tmp_path / "d" / "uv"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (2, 2, 3), np.uint8)).save(path)
    run = tmp_path / "r"
    command = ("prepare", tmp_path / "d", "--condition", "label", "--run", run)
    outcome = bayesnde(*command)
    assert outcome.code == 0, outcome.err
    assert outcome.err.startswith(
        "read as: images in a folder, 60 x 2 x 2 x 3, label from 2 sub-folders\n60 images of 2 x 2 x 3, 2 classes\n"
    )
    assert _schema(run).image == ImageShape(2, 2, 3)
    assert _schema(run).classes == ("u", "v")
    files = sorted((tmp_path / "d").rglob("*.png"))
    pairs = [[str(file.relative_to(tmp_path / "d")), hashlib.sha256(file.read_bytes()).hexdigest()] for file in files]
    recorded = json.loads((run / "prepare/manifest.json").read_text())["inputs"]["data-0"]
    assert recorded["path"] == str(tmp_path / "d")
    assert recorded["bytes"] == sum(file.stat().st_size for file in files)
    assert recorded["sha256"] == sha256_json(pairs)
    assert bayesnde(*command).out.endswith("(up to date)\n")
    (tmp_path / "d/u/0.png").rename(tmp_path / "d/u/00.png")
    other = bayesnde(*command)
    assert other.code == 2
    assert other.err.startswith("error: prepare was made with other settings or data\n  data.data-0: ")
    (tmp_path / "d/u/00.png").write_bytes(b"")
    damaged = bayesnde("prepare", tmp_path / "d", "--run", tmp_path / "other")
    assert damaged.code == 2
    assert f"error: {tmp_path}/d/u/00.png cannot be decoded\n" in damaged.err
    assert not (tmp_path / "other/prepare/schema.json").exists()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"drop": ("px_1_1",)}, "a pixel with another role"),
        ({"features": ("px_*",)}, "--features"),
        ({"drop_constant": True}, "--drop-constant"),
        ({"type": ("px_1_1=lattice",)}, "--type"),
        ({"dequantize": ("none",)}, "--dequantize"),
        ({"max_robust_z": 9.0}, "--max-robust-z"),
        ({"condition": "label", "drop": ("name",), "missing": "drop"}, ""),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_about_columns_ask_for_a_table_of_pixels(settings: dict, reason: str, small: Path) -> None:
    table, notes = open_sources(sources_of([small])), Notes()
    config = PrepareSettings(**settings)
    found = image_of(table, assign_roles(table.names, config), config, notes)
    if reason:
        assert (found, notes.told) == (None, [f"read as a table of pixels, not as images of 3 x 4: {reason}"])
    else:
        assert (found, notes.told) == (ImageShape(3, 4), [])


def test_another_scaling_makes_it_a_table_of_pixels(small: Path, bayesnde: Callable, tmp_path: Path) -> None:
    outcome = bayesnde("prepare", small, "--id", "name", "--scale", "standard", "--run", tmp_path / "r")
    assert outcome.code == 0, outcome.err
    assert "not as images" not in outcome.err
    schema = _schema(tmp_path / "r")
    assert schema.image is None
    assert len(schema.features) == 13  # the label is a column like any other
    assert "image" not in json.loads((tmp_path / "r/prepare/schema.json").read_text())


def test_a_table_of_bytes_may_have_the_logit_and_no_other(bayesnde: Callable, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "d.csv"
    rows = np.column_stack([rng.integers(0, 256, (80, 2)), rng.integers(0, 257, 80), rng.normal(size=80)])
    rows[0, 2] = 256
    np.savetxt(path, rows, delimiter=",", header="a,b,c,d", comments="")
    outcome = bayesnde("prepare", path, "--drop", "c,d", "--scale", "logit", "--run", tmp_path / "r")
    assert outcome.code == 0, outcome.err
    assert "U(0, 1)" in outcome.err
    assert (_schema(tmp_path / "r").image, len(_schema(tmp_path / "r").features)) == (None, 2)
    assert _schema(tmp_path / "r").features[0].map == Logit()
    outcome = bayesnde("prepare", path, "--scale", "logit", "--run", tmp_path / "s")
    assert outcome.code == 2
    low, high = rows[:, 3].min(), rows[:, 3].max()
    assert outcome.err.endswith(
        "error: --scale logit takes whole numbers from 0 to 255 only\n"
        f"  columns: c (lattice, {rows[:, 2].min():g} to 256), d (continuous, {low:g} to {high:g})\n"
        "hint: choose another --scale, or leave such columns out with --drop\n"
    )
    outcome = bayesnde("prepare", path, "--drop", "c,d", "--scale", "logit", "--dequantize", "a=-1,1", "--run", "x")
    assert outcome.code == 2
    assert outcome.err.endswith(
        "error: --scale logit has a noise of its own, U(0, 1)\n"
        "  rules: --dequantize a=-1,1\n"
        "hint: leave --dequantize out, or choose another --scale\n"
    )


def test_a_column_called_image_is_refused_next_to_images(bayesnde: Callable, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((60, 2, 2), np.uint8), image=np.arange(60))
    outcome = bayesnde("prepare", tmp_path / "a.npz", "--id", "image", "--run", tmp_path / "r")
    assert outcome.code == 2
    assert outcome.err.endswith(
        "error: column 'image' has a name that bayesnde writes itself\n"
        "  reserved in a run of images: image\n"
        "hint: rename it in the file, or leave it out with --drop image\n"
    )
