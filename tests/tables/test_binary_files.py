"""Parquet, NPY, NPZ, MAT, IDX and folders of images as tables, and every reason why they cannot be one."""

import datetime
import gzip
import struct
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
from PIL import Image
from table_reading import opened, read, refusal

from bayesnde_cli.errors import BadInput
from bayesnde_cli.tables import binary_files, sources
from bayesnde_cli.tables.columns import ImageShape
from bayesnde_cli.tables.sources import Table

pytestmark = pytest.mark.usefixtures("empty_folder")

# A column of each Arrow type: its cells, its numbers (None if it is not numeric), its words.
PARQUET_COLUMNS: dict[str, tuple[pa.Array, list | None, list]] = {
    "i": (pa.array([17, None], pa.int64()), [17.0, None], ["17", None]),
    "f": (pa.array([0.5, float("nan")], pa.float32()), [0.5, None], ["0.5", None]),
    "h": (pa.array([1.5, None], pa.float16()), [1.5, None], ["1.5", None]),
    "d": (pa.array([Decimal("1.25"), None]), [1.25, None], ["1.25", None]),
    "b": (pa.array([True, False]), [1.0, 0.0], ["true", "false"]),
    "c": (pa.array([1, 2]).dictionary_encode(), [1.0, 2.0], ["1", "2"]),
    "n": (pa.array([None, None], pa.null()), [None, None], [None, None]),
    "u": (pa.array([2**60 + 1, 0]), [float(2**60), 0.0], [str(2**60 + 1), "0"]),
    "s": (pa.array(["x", None]), None, ["x", None]),
    "l": (pa.array(["17.0", "y"], pa.large_string()), None, ["17", "y"]),
    "k": (pa.array(["x", "y"]).dictionary_encode(), None, ["x", "y"]),
    "t": (pa.array([datetime.date(2020, 1, 2), None]), None, ["2020-01-02", None]),
}
MATRIX = np.arange(12.0).reshape(4, 3)
GREY = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
COLOUR = np.arange(5 * 2 * 2 * 3, dtype=np.uint8).reshape(5, 2, 2, 3)


def values(table: Table) -> np.ndarray:
    return np.column_stack([column.to_numpy() for column in pa.Table.from_batches(table.batches()).columns])


def idx(array: np.ndarray, code: int = 8) -> bytes:
    big_endian = array.astype(array.dtype.newbyteorder(">"))
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + big_endian.tobytes()


def test_every_type_of_a_parquet_file_becomes_numbers_or_words() -> None:
    pq.write_table(pa.table({name: cells for name, (cells, _, _) in PARQUET_COLUMNS.items()}), "a.parquet")
    numbers = {name: found for name, (_, found, _) in PARQUET_COLUMNS.items() if found is not None}
    assert read(opened("a.parquet"), list(numbers)) == numbers
    assert read(opened("a.parquet"), ["k", "s", "l"]) == {name: PARQUET_COLUMNS[name][2] for name in ("k", "s", "l")}
    words = {name: found for name, (_, _, found) in PARQUET_COLUMNS.items()}
    assert read(opened("a.parquet"), list(words), list(words)) == words


@pytest.mark.parametrize("as_text", [[], ["v"]])
def test_dates_and_nested_columns_are_refused_when_they_are_read(as_text: list[str]) -> None:
    pq.write_table(pa.table({"i": [1], "t": [datetime.date(2020, 1, 2)], "v": [[1, 2]]}), "a.parquet")
    assert refusal("a.parquet", columns=["i", "t"]) == (
        "error: column 't' of a.parquet holds neither numbers nor text\n  type: date32[day]\n"
        "hint: use `--type t=categorical`, or use `--drop t`"
    )
    assert refusal("a.parquet", columns=["v"], as_text=as_text).startswith(
        "error: column 'v' of a.parquet holds neither"
    )


def test_batches_of_a_parquet_file_are_bounded_and_empty_row_groups_are_skipped() -> None:
    with pq.ParquetWriter("a.parquet", pa.schema([("x", pa.float64())])) as writer:
        for n_rows in (0, 100_000, 0, 50_000):
            writer.write_table(pa.table({"x": np.zeros(n_rows)}))
    assert [batch.num_rows for batch in opened("a.parquet").batches()] == [65_536, 65_536, 18_928]


def test_parquet_files_that_are_not_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"s": ["word" * 50] * 2}), "a.parquet", compression="none", use_dictionary=False)
    sound = Path("a.parquet").read_bytes()
    Path("a.parquet").write_bytes(sound.replace(b"wordword", b"wor\xff\xfford"))
    assert refusal("a.parquet").startswith("error: a.parquet is a truncated or damaged Parquet file\n")
    pq.write_table(pa.table({"x": pa.array([], pa.float64())}), "a.parquet")
    assert refusal("a.parquet") == "error: a.parquet holds no rows\n  Parquet, 0 x 1\nhint: give a file with rows"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]), "a.parquet")
    assert refusal("a.parquet").startswith("error: a.parquet has duplicate column names\n  more than once: x\n")
    pq.write_table(pa.table({"x": [0.5] * 999}), "a.parquet", use_dictionary=False)
    monkeypatch.setattr(sources, "available_memory", lambda: 2000)
    assert refusal("a.parquet").startswith("error: a.parquet does not fit into memory\n")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "f2", ">f8", "u8", "?", "longdouble"])
def test_an_npy_matrix_is_read_in_any_type_order_and_block_size(
    order: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.array(MATRIX.astype(dtype), order=order)  # type: ignore[call-overload]
    np.save("a.npy", array)
    for n_block_cells in (1 << 22, 6):
        monkeypatch.setattr(binary_files, "BLOCK_CELLS", n_block_cells)
        assert opened("a.npy").names == ("c1", "c2", "c3")
        assert np.array_equal(values(opened("a.npy")), array.astype(float))


def test_nan_is_a_missing_cell_and_a_vector_is_one_column() -> None:
    np.save("a.npy", np.array([1.0, np.nan]))
    assert read(opened("a.npy")) == {"c1": [1.0, None]}


def test_whole_numbers_as_text_have_no_decimal_point() -> None:
    np.savez(
        "a.npz",
        i=np.array([17, 2]),
        f=np.array([17.0, 2.5]),
        g=np.array([0.1, np.nan], np.float32),
        s=np.array(["x", "é"]),
    )
    assert read(opened("a.npz"), as_text=["i", "f", "g"]) == {
        "i": ["17", "2"],
        "f": ["17", "2.5"],
        "g": ["0.1", None],
        "s": ["x", "é"],
    }


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_gives_its_largest_matrix_and_the_vectors_of_equal_length(save: Callable) -> None:
    objects = np.array([[1, "x"]], object)
    save("a.npz", small=MATRIX[:2, :2], X=MATRIX, y=np.arange(4), w=np.ones((1, 4)), other=np.ones(5), o=objects)
    table = opened("a.npz")
    assert table.names == ("c1", "c2", "c3", "y", "w")
    assert table.description == "NPZ, X 4 x 3, y 4 x 1, w 4 x 1, ignored: small, other, o"
    assert np.array_equal(values(table), np.column_stack([MATRIX, np.arange(4), np.ones(4)]))
    assert read(table, ["y", "c2"]) == {"y": [0, 1, 2, 3], "c2": [1, 4, 7, 10]}


@pytest.mark.parametrize(
    ("dtype", "is_packed"), [("f8", False), ("f4", True), ("i1", False), ("u2", True), ("b1", True)]
)
def test_a_mat_file_gives_matrix_and_labels(dtype: str, is_packed: bool) -> None:
    made = {"X": MATRIX.astype(dtype), "y": np.ones((4, 1)), "meta": {"a": 1}, "note": "text", "z": np.array([1j])}
    scipy.io.savemat("a.mat", made, do_compression=is_packed)
    table = opened("a.mat")
    assert table.names == ("c1", "c2", "c3", "y")
    assert table.description == "MAT v5, X 4 x 3, y 4 x 1, ignored: meta, note, z"
    assert np.array_equal(values(table), np.column_stack([MATRIX.astype(dtype), np.ones(4)]))


def test_vectors_alone_are_a_table() -> None:
    scipy.io.savemat("a.mat", {"x": np.arange(4.0), "y": np.ones((4, 1))})
    assert opened("a.mat").names == ("x", "y")


@pytest.mark.parametrize(("code", "dtype"), [(8, "u1"), (9, "i1"), (11, "i2"), (12, "i4"), (13, "f4"), (14, "f8")])
def test_idx_is_read_in_every_type(code: int, dtype: str) -> None:
    for pack in (bytes, gzip.compress):
        Path("a").write_bytes(pack(idx(MATRIX.astype(dtype), code)))
        assert np.array_equal(values(opened("a")), MATRIX)


@pytest.mark.parametrize("array", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize("layout", ["NPY", "NPY in Fortran order", "IDX"])
def test_arrays_of_bytes_are_images(array: np.ndarray, layout: str) -> None:
    if layout == "IDX":
        Path("a.npy").write_bytes(idx(array))
    else:
        np.save("a.npy", np.array(array, order="C" if layout == "NPY" else "F"))
    table = opened("a.npy")
    assert table.image == ImageShape(*array.shape[1:])
    assert table.names == table.image.pixel_names()
    assert np.array_equal(values(table), array.reshape(5, -1))


def test_an_idx_array_of_other_numbers_is_a_table_of_pixels() -> None:
    Path("a").write_bytes(idx(GREY.astype("f4"), 0x0D))
    assert (opened("a").image, opened("a").names) == (None, ImageShape(2, 3).pixel_names())


def test_images_with_labels_in_several_files_are_one_table() -> None:
    Path("a").write_bytes(idx(GREY))
    Path("la").write_bytes(gzip.compress(idx(np.zeros(5, np.uint8))))
    np.save("b.npy", GREY + 100)
    np.save("lb.npy", np.ones(5))
    table = opened("a", "la", "b.npy", "lb.npy")
    assert table.image == ImageShape(2, 3)
    assert table.names == (*ImageShape(2, 3).pixel_names(), "label")
    assert np.array_equal(values(table)[:, :-1], np.vstack([GREY.reshape(5, -1), GREY.reshape(5, -1) + 100]))
    assert read(table, ["label"], ["label"])["label"] == ["0"] * 5 + ["1"] * 5


def test_the_largest_array_of_an_npz_may_be_images() -> None:
    np.savez("a.npz", images=GREY, small=np.ones((5, 2)), target=np.arange(5))
    table = opened("a.npz")
    assert table.image == ImageShape(2, 3)
    assert table.names == (*ImageShape(2, 3).pixel_names(), "target")
    assert table.description == "NPZ, images 5 x 2 x 3, target 5 x 1, ignored: small"
    np.savez("a.npz", images=GREY, large=np.ones((5, 9)))
    assert opened("a.npz").image is None


@pytest.mark.parametrize("other", [GREY.transpose(0, 2, 1), np.ones((4, 6))])
def test_images_that_do_not_fit_together(other: np.ndarray) -> None:
    Path("a").write_bytes(idx(GREY))
    np.save("b.npy", other)
    assert refusal("a", "b.npy").startswith(
        "error: b.npy and a do not hold images of the same size\n  a: IDX, 5 x 2 x 3\n  b.npy: NPY, "
    )


def test_a_vector_of_another_length_is_not_a_label() -> None:
    np.save("x.npy", MATRIX)
    np.save("y.npy", np.arange(5))
    assert refusal("x.npy", "y.npy").startswith("error: y.npy has different columns from x.npy\n")
    np.save("y.npy", np.arange(4))
    assert opened("x.npy", "y.npy").description == "NPY, 4 x 3 float64 with label from y.npy"


@pytest.mark.parametrize(
    ("array", "start"),
    [
        (np.zeros(2, [("a", "f8")]), "a.npy holds neither numbers nor text\n  dtype: [('a', '<f8')]\n"),
        (np.zeros(2, "M8[s]"), "a.npy holds neither numbers nor text\n  dtype: datetime64[s]\n"),
        (np.zeros((0, 3)), "a.npy holds no rows\n  NPY, 0 x 3 float64\n"),
        (np.broadcast_to(np.uint8(0), (2, 100_001)), "a.npy has too many columns\n  100,001 columns, the limit"),
        (np.float64(1.5), "a.npy is an array of 0 axes\n  shape: a single number\n"),
    ],
)
def test_npy_files_that_are_not_tables(array: np.ndarray, start: str) -> None:
    np.save("a.npy", array)
    assert refusal("a.npy").startswith(f"error: {start}")


@pytest.mark.parametrize("shape", ["(4, -3)", "[4, 3]", "(" * 500, "(10**12, 3)"])
def test_npy_headers_that_are_wrong(shape: str) -> None:
    text = f"{{'shape': {shape}, 'fortran_order': False, 'descr': '<f8'}} \n".encode()
    Path("a.npy").write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + bytes(96))
    assert refusal("a.npy").startswith("error: a.npy is a truncated or damaged NPY file\n")


def test_idx_files_that_are_not_tables() -> None:
    sound = idx(MATRIX.astype("u1"))
    for content in (sound[:-1], gzip.compress(sound[:-1]), sound[:7]):
        Path("a").write_bytes(content)
        assert refusal("a").startswith("error: a is a truncated or damaged IDX file\n")
    Path("a").write_bytes(idx(np.zeros((1, 2, 3, 4, 5), "u1")))
    assert refusal("a").startswith("error: a is an array of 5 axes\n  shape: 1 x 2 x 3 x 4 x 5\n")


@pytest.mark.parametrize(
    ("arrays", "start"),
    [
        (
            {"X": np.array([[1, "x"]], object), "t": np.zeros((2, 2, 2))},
            "a.npz holds no numeric matrix\n  arrays: t (2 x 2 x 2), X (object)\n",
        ),
        ({"images": np.zeros((5, 2, 3)), "label": np.arange(5)}, "a.npz holds no numeric matrix\n  arrays: images (5"),
        ({"X": MATRIX, "c1": np.ones(4)}, "a.npz has duplicate column names\n  more than once: c1\n"),
    ],
    ids=["pickled objects", "images of floats", "a key that is a made-up name"],
)
def test_npz_files_that_are_not_tables(arrays: dict[str, np.ndarray], start: str) -> None:
    np.savez("a.npz", **arrays)  # type: ignore[arg-type]
    assert refusal("a.npz").startswith(f"error: {start}")


@pytest.mark.parametrize("number", [0xD800, 0x110000])
def test_words_that_are_not_unicode_and_damaged_numbers(number: int) -> None:
    words = np.array(["ab", "\U0010ffff", "\ud7ff\ue000", "d"])
    np.savez("a.npz", x=MATRIX, w=words)
    assert read(opened("a.npz"))["w"] == words.tolist()
    words.view("u4")[5] = number
    np.savez("a.npz", x=MATRIX, w=words)
    assert refusal("a.npz").startswith("error: a.npz is a truncated or damaged NPZ file\n")
    np.savez("a.npz", X=np.ones((100, 100)))
    content = bytearray(Path("a.npz").read_bytes())
    content[5000] ^= 0xFF
    Path("a.npz").write_bytes(content)
    assert refusal("a.npz").startswith("error: a.npz is a truncated or damaged NPZ file\n  Bad CRC-32")


def test_mat_files_without_a_matrix() -> None:
    scipy.io.savemat("a.mat", {"t": np.zeros((2, 2, 2)), "z": np.array([[1j, 2], [3, 4]]), "s": {"a": 1}})
    found = "arrays: t (2 x 2 x 2), z (complex), s (struct)"
    assert refusal("a.mat").startswith(f"error: a.mat holds no numeric matrix\n  {found}\n")


def test_arrays_larger_than_the_memory_are_refused_by_their_declared_size(monkeypatch: pytest.MonkeyPatch) -> None:
    large = np.ones((1000, 1000), np.uint8)
    np.savez_compressed("a.npz", X=large)
    scipy.io.savemat("a.mat", {"X": large}, do_compression=True)
    Path("a").write_bytes(gzip.compress(idx(large)))
    np.save("a.npy", large)
    monkeypatch.setattr(sources, "available_memory", lambda: 10**5)
    for name in ("a.npz", "a.mat", "a"):
        assert refusal(name).startswith(f"error: {name} does not fit into memory\n")
    assert len(opened("a.npy").names) == 1000  # mapped, never held


# Folders of images

RNG = np.random.default_rng(0)


def write_image(name: str, pixels: np.ndarray | bytes | None = None, **options: object) -> np.ndarray:
    """Write an image of 4 x 3 random pixels, of given pixels, or a file of given bytes."""
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    if isinstance(pixels, bytes):
        Path(name).write_bytes(pixels)
        return np.empty(0)
    pixels = RNG.integers(0, 256, (4, 3), np.uint8) if pixels is None else pixels
    Image.fromarray(pixels).save(name, **options)  # type: ignore[arg-type]
    return pixels


def png(bits: int, colour: int, data: bytes, size: tuple[int, int] = (2, 2)) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", *size, bits, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(data)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("n_block_cells", [1 << 22, 24])
def test_sub_folders_are_classes_and_rows_are_sorted_by_path(
    n_block_cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary_files, "BLOCK_CELLS", n_block_cells)
    names = ["d/one/b.png", "d/one/a.PNG", "d/two/c.bmp", "d/two/d.pgm", "d/two/z.png"]
    pixels = {name: write_image(name) for name in names}
    write_image("d/notes.txt", b"mine")
    write_image("d/.hidden/x.png", b"a thumbnail")
    table = opened("d")
    assert table.image == ImageShape(4, 3)
    assert table.names == (*ImageShape(4, 3).pixel_names(), "label")
    assert table.description == "images in a folder, 5 x 4 x 3, label from 2 sub-folders, 1 other file ignored"
    found = read(table)
    assert found["label"] == ["one", "one", "two", "two", "two"]
    rows = np.column_stack([found[name] for name in ImageShape(4, 3).pixel_names()])
    assert np.array_equal(rows, [pixels[name].ravel() for name in sorted(names)])


def test_images_without_sub_folders_have_no_label() -> None:
    for name in ("d/a.png", "d/b.ppm"):
        write_image(name, RNG.integers(0, 256, (2, 2, 3), np.uint8))
    table = opened("d")
    assert (table.image, table.names) == (ImageShape(2, 2, 3), ImageShape(2, 2, 3).pixel_names())
    assert table.description == "images in a folder, 2 x 2 x 2 x 3"


def test_jpeg_images_one_bit_images_and_palettes_are_read() -> None:
    write_image("jpeg/a.jpg", np.full((8, 8), 200, np.uint8))
    assert max(abs(value[0] - 200) for value in read(opened("jpeg")).values()) <= 2
    write_image("one/a.pbm", b"P1\n2 1\n1 0\n")
    assert read(opened("one")) == {"px_1_1": [0], "px_1_2": [255]}
    Path("palette").mkdir()
    Image.fromarray(np.array([[0, 128, 255]], np.uint8)).convert("P").save("palette/a.png")
    assert opened("palette").image == ImageShape(1, 3, 3)
    assert [value[0] for value in read(opened("palette")).values()] == [0, 0, 0, 128, 128, 128, 255, 255, 255]


def test_folders_and_arrays_of_images_are_one_table() -> None:
    first, second = write_image("a/k/x.png"), write_image("b/m/x.png")
    np.save("c.npy", np.stack([first, second]))
    np.save("y.npy", np.array(["n", "n"]))
    found = read(opened("a", "b", "c.npy", "y.npy"))
    assert found["label"] == ["k", "m", "n", "n"]
    assert found["px_1_1"] == [first[0, 0], second[0, 0]] * 2


def test_files_are_decoded_only_when_their_batch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary_files, "BLOCK_CELLS", 12)
    write_image("d/a.png")
    write_image("d/b.png")
    write_image("d/c.png", b"not an image")
    batches = opened("d").batches()
    assert next(batches).num_rows == next(batches).num_rows == 1
    with pytest.raises(BadInput, match=r"d/c\.png cannot be decoded\n  cannot identify image file"):
        next(batches)


@pytest.mark.parametrize(("other", "words"), [((3, 4), "3 x 4, grey"), ((4, 3, 3), "4 x 3, RGB")])
def test_unequal_images_are_refused_by_name(other: tuple[int, ...], words: str) -> None:
    write_image("d/k/a.png")
    write_image("d/m/b.png", np.zeros(other, np.uint8))
    assert refusal("d") == (
        f"error: d holds images of different sizes or colours\n  4 x 3, grey: d/k/a.png\n  {words}: d/m/b.png\n"
        "hint: convert them to one size, and all to grey or all to RGB"
    )


@pytest.mark.parametrize(
    ("name", "mode", "data"),
    [
        ("a.png", "RGBA", png(8, 6, bytes(18))),
        ("a.png", "I;16", png(16, 0, bytes(10))),
        ("a.png", "RGB", png(16, 2, bytes(26))),  # Pillow would cut it to eight bits silently
        ("a.ppm", "RGB", b"P6 2 2 65535\n" + bytes(24)),
    ],
)
def test_transparency_and_deep_channels_are_refused(name: str, mode: str, data: bytes) -> None:
    write_image(f"d/{name}", data)
    assert refusal("d") == (
        f"error: d/{name} is not a grey or RGB image with eight bits per channel\n  mode: {mode}\n"
        "hint: convert the images to grey or RGB, values 0 to 255, without transparency"
    )


def test_a_transparent_grey_is_refused_and_eight_bits_are_not_taken_for_sixteen() -> None:
    write_image("d/a.png", transparency=0)
    assert "\n  mode: L, with transparency\n" in refusal("d")
    write_image("e/a.png", png(8, 2, bytes(14)))
    write_image("e/b.ppm", b"P6 2 2 255\n" + bytes(12))
    assert read(opened("e"))["px_1_1_1"] == [0, 0]


def test_truncated_and_large_images_are_refused() -> None:
    write_image("d/a.png", RNG.integers(0, 256, (30, 30), np.uint8))
    write_image("d/a.png", Path("d/a.png").read_bytes()[:300])
    assert refusal("d").startswith("error: d/a.png cannot be decoded\n  image file is truncated")
    write_image("d/a.png", png(8, 0, b"", (60_000, 60_000)))
    assert refusal("d").startswith("error: d/a.png cannot be decoded\n  Image size (3600000000 pixels) exceeds limit")
    write_image("d/a.png", np.zeros((400, 400), np.uint8))
    assert refusal("d").startswith("error: d has too many columns\n  160,000 columns, the limit is 100,000\n")


@pytest.mark.parametrize("names", [["a.png", "k/b.png"], ["train/k/b.png"]])
def test_folders_that_are_not_sorted_into_classes(names: list[str]) -> None:
    for name in names:
        write_image(f"d/{name}", b"anything")
    found = "".join(f"  image: {name}\n" for name in names)
    assert refusal("d") == (
        f"error: the images in d are not sorted into classes\n{found}"
        "hint: put all images into sub-folders, one for each class, or all into the folder itself"
    )
