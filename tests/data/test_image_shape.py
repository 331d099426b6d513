"""The size of images: how its pixels are counted, named and stored."""

import numpy as np
import pyarrow as pa
import pytest

from bayesnde_cli.data.image import ImageShape, image_column, image_type, pixel_columns, shape_of_array, stored_pixels


def test_pixels_are_named_by_row_and_column_from_one() -> None:
    shape = ImageShape(2, 3)
    assert shape.pixel_names() == ("px_1_1", "px_1_2", "px_1_3", "px_2_1", "px_2_2", "px_2_3")
    assert (shape.n_pixels, str(shape), shape.to_json()) == (6, "2 x 3", [2, 3, 1])


def test_channels_come_last_and_run_fastest() -> None:
    shape = ImageShape(1, 2, 3)
    assert shape.pixel_names() == ("px_1_1_1", "px_1_1_2", "px_1_1_3", "px_1_2_1", "px_1_2_2", "px_1_2_3")
    assert (shape.n_pixels, str(shape)) == (6, "1 x 2 x 3")


def test_a_size_survives_json() -> None:
    assert ImageShape.from_json(ImageShape(28, 20, 3).to_json()) == ImageShape(28, 20, 3)


@pytest.mark.parametrize("stored", [[28, 28], [28, 28, 0], [28, 28, True], [28, 28, 1.0], "28", None, {}])
def test_what_is_no_size_is_refused(stored: object) -> None:
    with pytest.raises(ValueError, match="image"):
        ImageShape.from_json(stored)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((5, 2, 3), "u1", ImageShape(2, 3)),
        ((5, 2, 3, 3), "u1", ImageShape(2, 3, 3)),
        ((5, 2, 3), "i2", None),
        ((5, 2, 3), "f4", None),
        ((5, 6), "u1", None),
        ((5, 2, 0), "u1", None),
        ((5, 2, 3, 3, 1), "u1", None),
    ],
)
def test_arrays_of_bytes_with_three_or_four_axes_are_images(shape: tuple, dtype: str, expected: object) -> None:
    assert shape_of_array(shape, np.dtype(dtype)) == expected


def test_pixels_survive_their_column_and_become_columns_again() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    column = image_column(pixels)
    assert column.type == image_type(ImageShape(2, 3))
    # of a slice, too, whose first images are not to be seen
    assert np.array_equal(stored_pixels(column[1:]), pixels[1:])
    table = pixel_columns(pa.table({"image": column, "k": [1, 2, 3, 4]}), ImageShape(2, 3))
    assert table.column_names == [*ImageShape(2, 3).pixel_names(), "k"]
    assert table["px_2_1"].to_pylist() == [3, 9, 15, 21]


def test_a_row_without_an_image_is_refused() -> None:
    with pytest.raises(ValueError, match="a row without image"):
        stored_pixels(pa.array([[1, 2], None], pa.list_(pa.uint8(), 2)))
