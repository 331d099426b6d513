"""New images for a model of images: of its size, whatever file they come in."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.data.image import ImageShape
from bayesnde_cli.data.new_rows import match_table, model_rows
from bayesnde_cli.data.readers import open_table
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.errors import BadInput

IMAGES = np.random.default_rng(1).integers(0, 256, (60, 2, 3), np.uint8)


@pytest.fixture
def schema(bayesnde: Callable, tmp_path: Path) -> Schema:
    np.save(tmp_path / "a.npy", IMAGES)
    assert bayesnde("prepare", tmp_path / "a.npy", "--run", tmp_path / "run").code == 0
    return Schema.from_json(json.loads((tmp_path / "run/prepare/schema.json").read_text()))


def _x(path: Path, schema: Schema) -> np.ndarray:
    table = open_table([path])
    matched, _ = match_table(table, schema)
    assert matched.image == schema.image
    return np.concatenate([batch.x_scaled for batch in model_rows(table, matched)])


def _refused(path: Path, schema: Schema) -> str:
    with pytest.raises(BadInput) as caught:
        _x(path, schema)
    return str(caught.value)


def _pixel_table(values: np.ndarray) -> pa.Table:
    return pa.table(dict(zip(ImageShape(2, 3).pixel_names(), values.reshape(-1, 6).T, strict=True)))


def test_the_same_images_come_out_as_prepare_wrote_them(schema: Schema, tmp_path: Path) -> None:
    x = _x(tmp_path / "a.npy", schema)
    for split in ("train", "validation", "test"):
        table = pq.read_table(tmp_path / f"run/prepare/{split}.parquet")
        assert np.array_equal(x[table["row_id"].to_numpy()], np.stack(table["x_scaled"].to_numpy()))
    np.savez(tmp_path / "b.npz", some=IMAGES)
    assert np.array_equal(_x(tmp_path / "b.npz", schema), x)


def test_columns_of_pixels_such_as_a_sample_s_are_images_too(schema: Schema, tmp_path: Path) -> None:
    pq.write_table(_pixel_table(IMAGES.astype(np.int64)), tmp_path / "b.parquet")
    assert np.array_equal(_x(tmp_path / "b.parquet", schema), _x(tmp_path / "a.npy", schema))


def test_images_of_another_size_are_refused_with_both_sizes(schema: Schema, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.zeros((5, 3, 2), np.uint8))
    assert _refused(tmp_path / "b.npy", schema) == (
        "error: the images are not of the model's size\n"
        "  images of 3 x 2\n"
        "  the model's: 2 x 3\n"
        "hint: bring the images to the model's size, or prepare a run of their own"
    )


def test_a_larger_image_is_not_taken_for_one_with_columns_to_spare(schema: Schema, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.zeros((5, 4, 4), np.uint8))
    assert "images of 4 x 4\n  the model's: 2 x 3\n" in _refused(tmp_path / "b.npy", schema)


def test_a_table_without_pixels_is_refused(schema: Schema, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", IMAGES.reshape(-1, 6))
    assert _refused(tmp_path / "b.npy", schema) == (
        "error: the file lacks 6 of the model's 6 columns\n"
        "  missing: px_1_1, px_1_2, px_1_3, px_2_1, px_2_2, px_2_3\n"
        "  columns: c1, c2, c3, c4, c5, c6\n"
        "hint: the model is one of images of 2 x 3: give such images, or columns of these names"
    )


def test_a_value_that_no_pixel_has_is_refused(schema: Schema, tmp_path: Path) -> None:
    values = IMAGES.astype(np.int64)
    values[4, 1, 0] = 256
    pq.write_table(_pixel_table(values), tmp_path / "b.parquet")
    assert _refused(tmp_path / "b.parquet", schema) == (
        "error: column 'px_2_1' has a number out of range in row 5\n"
        "  cell: 256.0\n"
        "  --scale logit knows 0 to 255 only\n"
        "hint: correct or remove the row"
    )
