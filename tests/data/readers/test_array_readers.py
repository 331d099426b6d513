"""NPY, NPZ, MAT and IDX: arrays as tables, and every way in which they cannot be one."""

import gzip
import struct
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.io

from bayesnde_cli.data.readers import Source, Table, array_table, mat, open_table
from bayesnde_cli.errors import BadInput

MATRIX = np.arange(12.0).reshape(4, 3)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def opened(*names: str) -> Table:
    return open_table([Path(name) for name in names])


def read(table: Table, **options: object) -> pa.Table:
    return pa.Table.from_batches(table.batches(**options))  # type: ignore[arg-type]


def values(table: Table) -> np.ndarray:
    return np.column_stack([column.to_numpy() for column in read(table).columns])


def message(*names: str) -> str:
    with pytest.raises(BadInput) as caught:
        list(opened(*names).batches())
    assert caught.value.exit_code == 2
    return str(caught.value)


def idx(array: np.ndarray, code: int) -> bytes:
    big_endian = array.astype(array.dtype.newbyteorder(">"))
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + big_endian.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", ">f8", "i2", "u8", "?", "longdouble"])
@pytest.mark.parametrize("n_block_cells", [1 << 22, 6])
def test_an_npy_matrix_is_read_in_any_type_order_and_block_size(
    order: str, dtype: str, n_block_cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_table, "BLOCK_CELLS", n_block_cells)
    array = np.array(MATRIX.astype(dtype), order=order)  # type: ignore[call-overload]
    np.save("a.npy", array)
    table = opened("a.npy")
    assert table.names == ("c1", "c2", "c3")
    assert np.array_equal(values(table), array.astype(float))


def test_nan_is_a_missing_cell() -> None:
    np.save("a.npy", np.array([[1.0, np.nan]]))
    assert read(opened("a.npy")).to_pylist() == [{"c1": 1.0, "c2": None}]


def test_a_vector_is_one_column() -> None:
    np.save("a.npy", np.arange(3))
    assert read(opened("a.npy")).to_pydict() == {"c1": [0, 1, 2]}


def test_whole_numbers_as_text_have_no_point() -> None:
    np.savez("a.npz", i=np.array([17, 2]), f=np.array([17.0, 2.5]), g=np.float32([0.1, np.nan]), s=np.array(["x", "y"]))
    assert read(opened("a.npz"), as_text=["i", "f", "g"]).to_pydict() == {
        "i": ["17", "2"],
        "f": ["17", "2.5"],
        "g": ["0.1", None],
        "s": ["x", "y"],
    }


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_gives_its_largest_matrix_and_the_vectors_of_equal_length(save) -> None:
    save("a.npz", small=MATRIX[:2, :2], X=MATRIX, y=np.arange(4), w=np.ones((1, 4)), other=np.ones(5))
    table = opened("a.npz")
    assert table.names == ("c1", "c2", "c3", "y", "w")
    assert table.description == "NPZ, X 4 x 3, y 4 x 1, w 4 x 1, ignored: small, other"
    assert np.array_equal(values(table), np.column_stack([MATRIX, np.arange(4), np.ones(4)]))


def test_only_the_chosen_columns_of_an_npz_are_given_in_their_order() -> None:
    np.savez("a.npz", X=MATRIX, y=np.arange(4))
    assert read(opened("a.npz"), columns=["y", "c2"]).column_names == ["y", "c2"]


def test_a_mat_file_gives_matrix_and_labels() -> None:
    scipy.io.savemat("a.mat", {"X": MATRIX, "y": np.ones((4, 1)), "meta": {"a": 1}, "note": "text"})
    table = opened("a.mat")
    assert table.names == ("c1", "c2", "c3", "y")
    assert table.description == "MAT v5, X 4 x 3, y 4 x 1, ignored: meta, note"
    assert np.array_equal(values(table), np.column_stack([MATRIX, np.ones(4)]))


def test_vectors_alone_are_a_table() -> None:
    scipy.io.savemat("a.mat", {"x": np.arange(4.0), "y": np.ones((4, 1))})
    assert opened("a.mat").names == ("x", "y")


@pytest.mark.parametrize("is_packed", [False, True])
def test_mat_variables_are_those_that_scipy_reads(is_packed: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        shapes = [tuple(rng.integers(1, 6, rng.integers(1, 4))) for _ in range(4)]
        kinds = rng.choice(["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "b1"], 4)
        made = {
            f"v{n}": (100 * rng.normal(size=shape)).astype(kind)
            for n, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
        }
        scipy.io.savemat("a.mat", made | {"skipped": {"a": 1}, "word": "w"}, do_compression=is_packed)
        wanted = scipy.io.loadmat("a.mat")
        found = {variable.name: variable for variable in mat._variables(Source(Path("a.mat"), "a.mat"))}
        assert {name: found[name].what for name in ("skipped", "word")} == {"skipped": "struct", "word": "char"}
        for name in made:
            assert np.array_equal(found[name].array, wanted[name])


@pytest.mark.parametrize(("code", "dtype"), [(8, "u1"), (9, "i1"), (11, "i2"), (12, "i4"), (13, "f4"), (14, "f8")])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_is_read_in_every_type(code: int, dtype: str, pack) -> None:
    array = MATRIX.astype(dtype)
    Path("a").write_bytes(pack(idx(array, code)))
    assert opened("a").names == ("c1", "c2", "c3")
    assert np.array_equal(values(opened("a")), array)


def test_idx_images_are_laid_flat_and_labels_stand_beside_them() -> None:
    images, labels = np.arange(24, dtype="u1").reshape(4, 2, 3), np.array([7, 8, 9, 1], "u1")
    Path("images").write_bytes(idx(images, 8))
    Path("labels").write_bytes(gzip.compress(idx(labels, 8)))
    table = opened("images", "labels", "images", "labels")
    assert table.names == ("px_1_1", "px_1_2", "px_1_3", "px_2_1", "px_2_2", "px_2_3", "label")
    once = np.column_stack([images.reshape(4, 6), labels])
    assert np.array_equal(values(table), np.vstack([once, once]))
    assert read(table, columns=["label"], as_text=["label"])["label"].to_pylist() == ["7", "8", "9", "1"] * 2


def test_an_npy_vector_stands_beside_the_matrix_before_it() -> None:
    np.save("x.npy", MATRIX)
    np.save("y.npy", np.arange(4))
    assert opened("x.npy", "y.npy").names == ("c1", "c2", "c3", "label")


def test_a_vector_of_another_length_is_not_a_label() -> None:
    np.save("x.npy", MATRIX)
    np.save("y.npy", np.arange(5))
    assert message("x.npy", "y.npy") == (
        "error: y.npy has 1 columns and x.npy has 3\n"
        "  files without column names are matched by position\n"
        "hint: give files with the same number of columns"
    )


@pytest.mark.parametrize(
    ("array", "what", "dtype"),
    [
        (np.array([[1j]]), "complex numbers", "complex128"),
        (np.zeros(2, [("a", "f8")]), "structured records", "[('a', '<f8')]"),
        (np.array([["x", 1]], object), "pickled objects", "object"),
        (np.zeros(2, "M8[s]"), "neither numbers nor text", "datetime64[s]"),
    ],
)
def test_npy_types_that_are_no_table(array: np.ndarray, what: str, dtype: str) -> None:
    np.save("a.npy", array)
    assert message("a.npy") == (
        f"error: a.npy holds {what}\n  dtype: {dtype}\nhint: save numbers: `np.save(file, array.astype(float))`"
    )


def test_an_npy_array_of_three_axes() -> None:
    np.save("a.npy", np.zeros((2, 3, 4)))
    assert message("a.npy") == (
        "error: a.npy is an array of 3 axes\n  shape: 2 x 3 x 4\n"
        "hint: reshape it to (rows, columns); images are arrays of bytes, `array.astype(np.uint8)`"
    )


def test_an_npy_array_without_rows() -> None:
    np.save("a.npy", np.zeros((0, 3)))
    assert message("a.npy") == (
        "error: a.npy holds no rows\n  NPY, 0 x 3 float64\nhint: give an array that holds numbers"
    )


def test_a_truncated_npy_file() -> None:
    np.save("a.npy", MATRIX)
    Path("a.npy").write_bytes(Path("a.npy").read_bytes()[:-10])
    assert message("a.npy") == (
        "error: a.npy is a truncated or damaged NPY file\n"
        "  214 bytes instead of 224\n"
        "hint: copy or download the file again"
    )


def test_an_npy_file_cut_in_its_header() -> None:
    np.save("a.npy", MATRIX)
    Path("a.npy").write_bytes(Path("a.npy").read_bytes()[:30])
    assert message("a.npy").startswith("error: a.npy is a truncated or damaged NPY file\n")


def _npy(text: str, version: int = 1) -> bytes:
    """A file of 96 zero bytes behind a header."""
    length = struct.pack("<H" if version == 1 else "<I", len(text.encode()))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + bytes(96)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_npy_header_as_python_2_wrote_it(version: int) -> None:
    Path("a.npy").write_bytes(_npy("{'shape': (4L, 3L), 'fortran_order': False, 'descr': '<f8'} \n", version))
    assert values(opened("a.npy")).shape == (4, 3)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[1]", "not a dictionary of descr, fortran_order and shape"),
        ("{'descr': '<f8', 'fortran_order': False}", "not a dictionary of descr, fortran_order and shape"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (True, 3)}", "shape is (True, 3)"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': [4, 3]}", "shape is [4, 3]"),
        ("{'descr': '<f8', 'fortran_order': 1, 'shape': (4, 3)}", "fortran_order is 1"),
        ("{'descr': 'f7', 'fortran_order': False, 'shape': (4, 3)}", "data type 'f7' not understood"),
    ],
)
def test_an_npy_header_that_says_something_else(text: str, found: str) -> None:
    Path("a.npy").write_bytes(_npy(text))
    assert message("a.npy") == (
        "error: a.npy is a truncated or damaged NPY file\n"
        f"  an NPY header that cannot be parsed: {found}\n"
        "hint: copy or download the file again"
    )


def test_an_npy_header_that_would_keep_numpy_busy_for_long_is_refused_at_once() -> None:
    start = time.process_time()
    Path("a.npy").write_bytes(_npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4, 3," + " " * 4900 + "\0", 2))
    assert message("a.npy").startswith("error: a.npy is a truncated or damaged NPY file\n")
    assert time.process_time() - start < 2


def test_an_npz_of_pickled_objects() -> None:
    np.savez("a.npz", X=np.array([[1, "x"]], object), t=np.zeros((2, 2, 2)))
    assert message("a.npz") == (
        "error: a.npz holds no numeric matrix\n"
        "  arrays: t (2 x 2 x 2), X (pickled objects)\n"
        "hint: save the rows as one array of (rows, columns)"
    )


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("number", [0xD800, 0xDFFF, 0x110000, 0xFFFFFFFF])
def test_an_npz_of_words_with_letters_that_there_are_not(number: int, order: str) -> None:
    words = np.array(["ab", "\U0010ffff", "\ud7ff\ue000", "d"], f"{order}U2")
    np.savez("a.npz", x=MATRIX, w=words)
    assert read(opened("a.npz"))["w"].to_pylist() == words.tolist()
    words.view(f"{order}u4")[5] = number
    np.savez("a.npz", x=MATRIX, w=words)
    assert message("a.npz") == (
        "error: a.npz is a truncated or damaged NPZ file\n"
        f"  {number:#x} is not a letter of Unicode\n"
        "hint: copy or download the file again"
    )


def test_an_npz_whose_key_is_a_made_up_name() -> None:
    np.savez("a.npz", X=MATRIX, c1=np.ones(4))
    assert message("a.npz") == (
        "error: a.npz has several columns of one name\n  more than once: 'c1'\nhint: rename the array of that name"
    )


def test_an_npz_with_damaged_numbers() -> None:
    np.savez("a.npz", X=np.ones((100, 100)))
    content = bytearray(Path("a.npz").read_bytes())
    content[5000] ^= 0xFF
    Path("a.npz").write_bytes(content)
    assert message("a.npz") == (
        "error: a.npz is a truncated or damaged NPZ file\n"
        "  Bad CRC-32 for file 'X.npy'\n"
        "hint: copy or download the file again"
    )


def test_a_mat_file_of_structs_and_cells_only() -> None:
    scipy.io.savemat("a.mat", {"s": {"a": 1}, "c": np.array([1, "x"], object)})
    assert message("a.mat") == (
        "error: a.mat holds no numeric matrix\n"
        "  arrays: s (struct), c (cell)\n"
        "hint: save the rows as one array of (rows, columns)"
    )


def test_a_mat_file_without_a_matrix() -> None:
    scipy.io.savemat("a.mat", {"t": np.zeros((2, 2, 2)), "z": np.array([[1j, 2], [3, 4]])})
    assert message("a.mat") == (
        "error: a.mat holds no numeric matrix\n"
        "  arrays: t (2 x 2 x 2), z (complex)\n"
        "hint: save the rows as one array of (rows, columns)"
    )


def test_a_truncated_mat_file() -> None:
    scipy.io.savemat("a.mat", {"X": MATRIX})
    Path("a.mat").write_bytes(Path("a.mat").read_bytes()[:200])
    assert message("a.mat").startswith("error: a.mat is a truncated or damaged MAT file\n")


def test_no_bit_of_a_packed_mat_file_may_change_what_is_read() -> None:
    rng = np.random.default_rng(0)
    scipy.io.savemat("a.mat", {"X": rng.normal(size=(40, 5))}, do_compression=True)
    sound = Path("a.mat").read_bytes()
    expected = read(open_table([Path("a.mat")]))
    n_read = 0
    for bit in rng.choice(np.arange(8 * 136, 8 * len(sound)), 200, replace=False).tolist():  # after the header
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        Path("b.mat").write_bytes(flipped)
        try:
            assert read(open_table([Path("b.mat")])).equals(expected)  # bits that stand for nothing
            n_read += 1
        except BadInput:
            pass
    assert n_read < 20


def test_a_truncated_idx_file() -> None:
    Path("a").write_bytes(idx(MATRIX.astype("u1"), 8)[:-1])
    assert message("a") == (
        "error: a is a truncated or damaged IDX file\n  23 bytes instead of 24\nhint: copy or download the file again"
    )


def test_a_truncated_idx_file_inside_gzip() -> None:
    Path("a").write_bytes(gzip.compress(idx(MATRIX.astype("u1"), 8)[:-1]))
    assert message("a") == (
        "error: a is a truncated or damaged IDX file\n"
        "  1 bytes are missing at the end\n"
        "hint: copy or download the file again"
    )


def test_an_idx_file_of_five_axes() -> None:
    Path("a").write_bytes(idx(np.zeros((1, 2, 3, 4, 5), "u1"), 8))
    assert message("a") == (
        "error: a is an IDX array of 5 axes\n"
        "  shape: 1 x 2 x 3 x 4 x 5\n"
        "hint: give vectors, matrices or images: up to four axes"
    )
