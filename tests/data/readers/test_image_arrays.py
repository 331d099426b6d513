"""IDX, NPY and NPZ files whose rows are images."""

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bayesnde_cli.data.image import ImageShape
from bayesnde_cli.data.readers import Table, open_table
from bayesnde_cli.errors import BadInput

GREY = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
COLOUR = np.arange(5 * 2 * 2 * 3, dtype=np.uint8).reshape(5, 2, 2, 3)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def opened(*names: str) -> Table:
    return open_table([Path(name) for name in names])


def values(table: Table) -> np.ndarray:
    return np.column_stack([column.to_numpy() for column in pa.Table.from_batches(table.batches()).columns])


def message(*names: str) -> str:
    with pytest.raises(BadInput) as caught:
        list(opened(*names).batches())
    return str(caught.value)


def write_idx(name: str, array: np.ndarray, code: int = 8) -> None:
    Path(name).write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes())


@pytest.mark.parametrize("array", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_npy_array_of_bytes_is_images(array: np.ndarray, order: str) -> None:
    np.save("a.npy", np.array(array, order=order))  # type: ignore[call-overload]
    table = opened("a.npy")
    assert table.image == ImageShape(*array.shape[1:])
    assert table.names == table.image.pixel_names()
    assert np.array_equal(values(table), array.reshape(5, -1))


@pytest.mark.parametrize("array", [GREY, COLOUR], ids=["grey", "colour"])
def test_an_idx_array_of_bytes_is_images(array: np.ndarray) -> None:
    write_idx("a", array)
    table = opened("a")
    assert table.image == ImageShape(*array.shape[1:])
    assert table.names == table.image.pixel_names()
    assert np.array_equal(values(table), array.reshape(5, -1))


def test_an_idx_array_of_other_numbers_is_a_table_of_pixels() -> None:
    write_idx("a", GREY.astype(">f4"), 0x0D)
    table = opened("a")
    assert table.image is None
    assert table.names == ImageShape(2, 3).pixel_names()


def test_a_matrix_of_bytes_is_no_image() -> None:
    np.save("a.npy", GREY.reshape(5, 6))
    assert opened("a.npy").image is None


def test_a_vector_after_images_is_their_label() -> None:
    np.save("a.npy", GREY)
    np.save("b.npy", np.arange(5))
    write_idx("c", np.arange(5, dtype=np.uint8))
    for labels in ("b.npy", "c"):
        table = opened("a.npy", labels)
        assert table.image == ImageShape(2, 3)
        assert table.names[-1] == "label"
        assert values(table)[:, -1].tolist() == [0, 1, 2, 3, 4]


def test_the_largest_array_of_an_npz_is_images_and_vectors_have_their_keys() -> None:
    np.savez("a.npz", images=GREY, small=np.ones((5, 2)), target=np.arange(5))
    table = opened("a.npz")
    assert table.image == ImageShape(2, 3)
    assert table.names == (*ImageShape(2, 3).pixel_names(), "target")
    assert table.description == "NPZ, images 5 x 2 x 3, target 5 x 1, ignored: small"


def test_a_larger_matrix_of_an_npz_goes_before_its_images() -> None:
    np.savez("a.npz", images=GREY, large=np.ones((5, 9)))
    table = opened("a.npz")
    assert table.image is None
    assert table.names[0] == "c1"


def test_images_in_several_files_are_one_table_of_images() -> None:
    write_idx("a", GREY)
    write_idx("la", np.zeros(5, np.uint8))
    np.save("b.npy", GREY + 100)
    np.save("lb.npy", np.ones(5))
    table = opened("a", "la", "b.npy", "lb.npy")
    assert table.image == ImageShape(2, 3)
    assert values(table)[:, -1].tolist() == [0] * 5 + [1] * 5
    assert np.array_equal(values(table)[5:, :-1], GREY.reshape(5, -1) + 100)


def test_images_of_two_sizes_are_refused() -> None:
    write_idx("a", GREY)
    write_idx("b", np.array(GREY.transpose(0, 2, 1)))
    assert message("a", "b") == (
        "error: b and a do not hold images of the same size\n"
        "  a: images of 2 x 3\n"
        "  b: images of 3 x 2\n"
        "hint: give images of one size, or prepare them apart"
    )


def test_images_and_a_matrix_are_refused() -> None:
    write_idx("a", GREY)
    np.save("b.npy", np.ones((4, 6)))
    assert message("a", "b.npy") == (
        "error: b.npy and a do not hold images of the same size\n"
        "  a: images of 2 x 3\n"
        "  b.npy: no images (NPY, 4 x 6 float64)\n"
        "hint: give images of one size, or prepare them apart"
    )


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_an_npz_whose_images_are_no_bytes_is_refused_and_its_labels_are_not_the_table(dtype: type) -> None:
    np.savez("a.npz", images=np.zeros((5, 2, 3), dtype), label=np.arange(5))
    with pytest.raises(BadInput) as error:
        opened("a.npz")
    assert str(error.value) == (
        "error: a.npz: 'images' is an array of 3 axes\n"
        f"  shape: 5 x 2 x 3, dtype: {np.dtype(dtype)}\n"
        "hint: reshape it to (rows, columns); images are arrays of bytes, `array.astype(np.uint8)`"
    )
