"""A folder of image files as a table, and every reason why it cannot be one."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from table_reading import opened, read, refusal

from bayesnde_cli.errors import BadInput
from bayesnde_cli.tables import binary_files
from bayesnde_cli.tables.columns import ImageShape

pytestmark = pytest.mark.usefixtures("empty_folder")

RNG = np.random.default_rng(0)


def write(name: str, pixels: np.ndarray | bytes | None = None, **options: object) -> np.ndarray:
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
    pixels = {name: write(name) for name in names}
    write("d/notes.txt", b"mine")
    write("d/.hidden/x.png", b"a thumbnail")
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
        write(name, RNG.integers(0, 256, (2, 2, 3), np.uint8))
    table = opened("d")
    assert (table.image, table.names) == (ImageShape(2, 2, 3), ImageShape(2, 2, 3).pixel_names())
    assert table.description == "images in a folder, 2 x 2 x 2 x 3"


def test_jpeg_images_one_bit_images_and_palettes_are_read() -> None:
    write("jpeg/a.jpg", np.full((8, 8), 200, np.uint8))
    assert max(abs(value[0] - 200) for value in read(opened("jpeg")).values()) <= 2
    write("one/a.pbm", b"P1\n2 1\n1 0\n")
    assert read(opened("one")) == {"px_1_1": [0], "px_1_2": [255]}
    Path("palette").mkdir()
    Image.fromarray(np.array([[0, 128, 255]], np.uint8)).convert("P").save("palette/a.png")
    assert opened("palette").image == ImageShape(1, 3, 3)
    assert [value[0] for value in read(opened("palette")).values()] == [0, 0, 0, 128, 128, 128, 255, 255, 255]


def test_folders_and_arrays_of_images_are_one_table() -> None:
    first, second = write("a/k/x.png"), write("b/m/x.png")
    np.save("c.npy", np.stack([first, second]))
    np.save("y.npy", np.array(["n", "n"]))
    found = read(opened("a", "b", "c.npy", "y.npy"))
    assert found["label"] == ["k", "m", "n", "n"]
    assert found["px_1_1"] == [first[0, 0], second[0, 0]] * 2


def test_files_are_decoded_only_when_their_batch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary_files, "BLOCK_CELLS", 12)
    write("d/a.png")
    write("d/b.png")
    write("d/c.png", b"not an image")
    batches = opened("d").batches()
    assert next(batches).num_rows == next(batches).num_rows == 1
    with pytest.raises(BadInput, match=r"d/c\.png cannot be decoded\n  cannot identify image file"):
        next(batches)


@pytest.mark.parametrize(("other", "words"), [((3, 4), "3 x 4, grey"), ((4, 3, 3), "4 x 3, RGB")])
def test_unequal_images_are_refused_by_name(other: tuple[int, ...], words: str) -> None:
    write("d/k/a.png")
    write("d/m/b.png", np.zeros(other, np.uint8))
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
    write(f"d/{name}", data)
    assert refusal("d") == (
        f"error: d/{name} is not a grey or RGB image with eight bits per channel\n  mode: {mode}\n"
        "hint: convert the images to grey or RGB, values 0 to 255, without transparency"
    )


def test_a_transparent_grey_is_refused_and_eight_bits_are_not_taken_for_sixteen() -> None:
    write("d/a.png", transparency=0)
    assert "\n  mode: L, with transparency\n" in refusal("d")
    write("e/a.png", png(8, 2, bytes(14)))
    write("e/b.ppm", b"P6 2 2 255\n" + bytes(12))
    assert read(opened("e"))["px_1_1_1"] == [0, 0]


def test_truncated_and_large_images_are_refused() -> None:
    write("d/a.png", RNG.integers(0, 256, (30, 30), np.uint8))
    write("d/a.png", Path("d/a.png").read_bytes()[:300])
    assert refusal("d").startswith("error: d/a.png cannot be decoded\n  image file is truncated")
    write("d/a.png", png(8, 0, b"", (60_000, 60_000)))
    assert refusal("d").startswith("error: d/a.png cannot be decoded\n  Image size (3600000000 pixels) exceeds limit")
    write("d/a.png", np.zeros((400, 400), np.uint8))
    assert refusal("d").startswith("error: d has too many columns\n  160,000 columns, the limit is 100,000\n")


@pytest.mark.parametrize("names", [["a.png", "k/b.png"], ["train/k/b.png"]])
def test_folders_that_are_not_sorted_into_classes(names: list[str]) -> None:
    for name in names:
        write(f"d/{name}", b"anything")
    found = "".join(f"  image: {name}\n" for name in names)
    assert refusal("d") == (
        f"error: the images in d are not sorted into classes\n{found}"
        "hint: put all images into sub-folders, one for each class, or all into the folder itself"
    )
