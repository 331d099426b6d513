"""A folder of image files as a table, and every way in which it cannot be one."""

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from bayesnde_cli.data.image import ImageShape
from bayesnde_cli.data.readers import Table, array_table, open_table
from bayesnde_cli.errors import BadInput

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, pixels: np.ndarray | None = None, **options: object) -> np.ndarray:
    pixels = RNG.integers(0, 256, (4, 3), np.uint8) if pixels is None else pixels
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(name, **options)  # type: ignore[arg-type]
    return pixels


def opened(*names: str) -> Table:
    return open_table([Path(name) for name in names])


def read(table: Table) -> pa.Table:
    return pa.Table.from_batches(table.batches())


def message(*names: str) -> str:
    with pytest.raises(BadInput) as caught:
        list(opened(*names).batches())
    assert caught.value.exit_code == 2
    return str(caught.value)


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
    monkeypatch.setattr(array_table, "BLOCK_CELLS", n_block_cells)
    names = ["d/one/b.png", "d/one/a.PNG", "d/two/c.bmp", "d/two/d.pgm", "d/two/z.png"]
    pixels = {name: write(name) for name in names}
    Path("d/notes.txt").write_text("mine")
    Path("d/.hidden").mkdir()
    Path("d/.hidden/x.png").write_text("a thumbnail")
    table = opened("d")
    assert table.image == ImageShape(4, 3)
    assert table.names == (*ImageShape(4, 3).pixel_names(), "label")
    assert table.description == "images in a folder, 5 x 4 x 3, label from 2 sub-folders, 1 other file ignored"
    found = read(table)
    assert found["label"].to_pylist() == ["one", "one", "two", "two", "two"]
    rows = np.column_stack([found[name].to_numpy() for name in ImageShape(4, 3).pixel_names()])
    assert np.array_equal(rows, [pixels[name].ravel() for name in sorted(names)])


def test_images_without_sub_folders_have_no_label() -> None:
    write("d/a.png", RNG.integers(0, 256, (2, 2, 3), np.uint8))
    write("d/b.ppm", RNG.integers(0, 256, (2, 2, 3), np.uint8))
    table = opened("d")
    assert (table.image, table.names) == (ImageShape(2, 2, 3), ImageShape(2, 2, 3).pixel_names())
    assert table.description == "images in a folder, 2 x 2 x 2 x 3"


def test_jpeg_images_are_read() -> None:
    write("d/a.jpg", np.full((8, 8), 200, np.uint8))
    row = read(opened("d")).to_pylist()[0]
    assert max(abs(value - 200) for value in row.values()) <= 2


def test_images_of_one_bit_or_with_a_palette_are_grey_and_rgb() -> None:
    Path("one").mkdir()
    Path("one/a.pbm").write_bytes(b"P1\n2 1\n1 0\n")
    assert read(opened("one")).to_pylist() == [{"px_1_1": 0, "px_1_2": 255}]
    Path("palette").mkdir()
    Image.fromarray(np.array([[0, 128, 255]], np.uint8)).convert("P").save("palette/a.png")
    table = opened("palette")
    assert table.image == ImageShape(1, 3, 3)
    assert [*read(table).to_pylist()[0].values()] == [0, 0, 0, 128, 128, 128, 255, 255, 255]


def test_two_folders_and_a_folder_with_an_array_are_one_table() -> None:
    first, second = write("a/k/x.png"), write("b/m/x.png")
    np.save("c.npy", np.stack([first, second]))
    np.save("y.npy", np.array(["n", "n"]))
    found = read(opened("a", "b", "c.npy", "y.npy"))
    assert found["label"].to_pylist() == ["k", "m", "n", "n"]
    assert found["px_1_1"].to_pylist() == [first[0, 0], second[0, 0]] * 2


def test_files_are_decoded_only_when_their_batch_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_table, "BLOCK_CELLS", 12)
    write("d/a.png")
    write("d/b.png")
    Path("d/c.png").write_bytes(b"no image")
    batches = opened("d").batches()
    assert next(batches).num_rows == next(batches).num_rows == 1
    with pytest.raises(BadInput):
        next(batches)


def test_the_decoder_is_imported_only_for_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)  # an import of it now fails
    np.save("a.npy", np.zeros((3, 2, 2), np.uint8))
    assert read(opened("a.npy")).num_rows == 3


@pytest.mark.parametrize(
    ("other", "words"),
    [((3, 4), "3 x 4, grey"), ((4, 3, 3), "4 x 3, RGB")],
    ids=["another size", "another colour"],
)
def test_unequal_images_are_refused_by_their_names(other: tuple, words: str) -> None:
    write("d/k/a.png")
    write("d/m/b.png", np.zeros(other, np.uint8))
    assert message("d") == (
        "error: d holds images of different sizes or colours\n"
        "  4 x 3, grey: d/k/a.png\n"
        f"  {words}: d/m/b.png\n"
        "hint: bring them to one size, and all to grey or all to RGB"
    )


@pytest.mark.parametrize(
    ("mode", "data"),
    [
        ("LA", png(8, 4, bytes(10))),
        ("RGBA", png(8, 6, bytes(18))),
    ],
)
def test_transparency_is_refused(mode: str, data: bytes) -> None:
    Path("d").mkdir()
    Path("d/a.png").write_bytes(data)
    assert message("d") == (
        "error: d/a.png has transparent pixels\n"
        f"  colours: {mode}\n"
        "hint: convert the images to grey or RGB without transparency"
    )


def test_a_transparent_grey_is_refused() -> None:
    write("d/a.png", transparency=0)
    assert message("d").startswith("error: d/a.png has transparent pixels\n  colours: L\n")


@pytest.mark.parametrize(
    ("name", "mode", "data"),
    [
        ("a.png", "I;16", png(16, 0, bytes(10))),
        ("a.png", "RGB", png(16, 2, bytes(26))),  # Pillow would cut it to eight bits without a word
        ("a.pgm", "I", b"P5 2 2 65535\n" + bytes(8)),
        ("a.ppm", "RGB", b"P6 2 2 65535\n" + bytes(24)),
    ],
    ids=["grey PNG", "RGB PNG", "PGM", "PPM"],
)
def test_sixteen_bits_are_refused(name: str, mode: str, data: bytes) -> None:
    Path("d").mkdir()
    Path("d", name).write_bytes(data)
    assert message("d") == (
        f"error: d/{name} has more than eight bits in a pixel\n"
        f"  colours: {mode}\n"
        "hint: convert the images to eight bits, values from 0 to 255"
    )


def test_eight_bits_are_not_taken_for_sixteen() -> None:
    Path("d").mkdir()
    Path("d/a.png").write_bytes(png(8, 2, bytes(14)))
    Path("d/b.ppm").write_bytes(b"P6 2 2 255\n" + bytes(12))
    assert read(opened("d")).num_rows == 2


def test_printer_s_colours_are_refused() -> None:
    Path("d").mkdir()
    Image.new("CMYK", (2, 2)).save("d/a.jpg")
    assert message("d") == (
        "error: d/a.jpg is neither grey nor RGB\n  colours: CMYK\nhint: convert the images to grey or RGB"
    )


def test_a_truncated_image_is_named() -> None:
    write("d/a.png", RNG.integers(0, 256, (30, 30), np.uint8))
    write("d/b.png", RNG.integers(0, 256, (30, 30), np.uint8))
    Path("d/b.png").write_bytes(Path("d/b.png").read_bytes()[:300])
    assert message("d") == (
        "error: d/b.png is a truncated or damaged image\n"
        "  image file is truncated\n"
        "hint: copy the file again, or take it out of the folder"
    )


def test_what_is_no_image_is_named() -> None:
    Path("d").mkdir()
    Path("d/a.png").write_text("GIF89a")
    assert message("d") == (
        "error: d/a.png is a truncated or damaged image\n"
        "  it does not begin as a PNG, JPEG, BMP, PGM or PPM file does\n"
        "hint: copy the file again, or take it out of the folder"
    )


def test_every_flipped_bit_is_an_image_or_a_message() -> None:
    pixels = write("d/a.png", RNG.integers(0, 256, (3, 3, 3), np.uint8))
    sound = Path("d/a.png").read_bytes()
    n_refused = 0
    for bit in RNG.choice(8 * len(sound), 200, replace=False).tolist():
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        Path("d/a.png").write_bytes(flipped)
        try:
            assert read(opened("d")).num_columns == pixels.size
        except BadInput:
            n_refused += 1
    assert n_refused > 100


def test_a_bomb_is_refused_by_its_header() -> None:
    Path("d").mkdir()
    Path("d/a.png").write_bytes(png(8, 0, b"", (60_000, 60_000)))
    assert message("d") == (
        "error: d/a.png is too large an image\n"
        "  Image size (3600000000 pixels) exceeds limit of 178956970 pixels, could be decompression bomb DOS attack.\n"
        "hint: make the images smaller"
    )


def test_a_large_image_is_refused() -> None:
    write("d/a.png", np.zeros((400, 400), np.uint8))
    assert message("d") == (
        "error: d/a.png is too large an image\n"
        "  400 x 400: 160,000 values, 100,000 are the most\n"
        "hint: make the images smaller"
    )


def test_images_with_and_without_a_class_are_refused() -> None:
    write("d/a.png")
    write("d/k/b.png")
    assert message("d") == (
        "error: d holds images with and without a class\n"
        "  in a sub-folder: d/k/b.png\n"
        "  in none: d/a.png\n"
        "hint: put all images into sub-folders, one for each class, or none"
    )


def test_folders_in_sub_folders_are_refused() -> None:
    write("d/train/k/b.png")
    assert message("d") == (
        "error: d has folders in its sub-folders\n"
        "  image: d/train/k/b.png\n"
        "hint: put the images of a class into one folder, and these into the folder that you give"
    )


def test_a_folder_of_other_files_is_refused() -> None:
    Path("d").mkdir()
    Path("d/a.csv").write_text("a,b\n1,2\n")
    assert message("d") == (
        "error: d is a directory without images\n"
        "  files: 'a.csv'\n"
        "hint: give the files inside it, or a folder of PNG, JPEG, BMP, PGM or PPM images"
    )
