"""Pictures: a PNG that can be read back, and colours in the order of their scale."""

import base64
import struct
import zlib

import numpy as np

from bayesnde_cli.report.colours import hex_colours, map_pixels, scale_colours
from bayesnde_cli.report.png import data_uri, png_bytes


def _read_back(data: bytes) -> np.ndarray:
    """The pixels of a PNG of ours, chunk by chunk, checksums verified."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert checksum == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    width, height, depth, colour_type = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour_type) == (8, 2)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def test_a_png_holds_its_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    np.testing.assert_array_equal(_read_back(png_bytes(pixels)), pixels)
    prefix, _, text = data_uri(pixels).partition(",")
    assert prefix == "data:image/png;base64"
    assert base64.b64decode(text) == png_bytes(pixels)


def test_the_colour_scale_grows_brighter_and_keeps_to_its_ends() -> None:
    brightness = scale_colours(np.linspace(0, 1, 20)).astype(float) @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(brightness) > 0).all()
    assert hex_colours(np.array([-1.0, 0.0, 1.0, 2.0, np.nan])) == [
        "#440154",
        "#440154",
        "#fde725",
        "#fde725",
        "#440154",
    ]


def test_a_map_has_its_first_row_at_the_bottom_and_shows_low_parts() -> None:
    density = np.zeros((2, 3))
    density[0] = [1.0, 0.25, 0.0]
    pixels, top = map_pixels(density)
    assert 0.9 < top <= 1.0
    np.testing.assert_array_equal(pixels[1, 0], scale_colours(np.array(1.0)))
    np.testing.assert_allclose(pixels[1, 1].astype(int), scale_colours(np.array(0.5)).astype(int), atol=3)
    np.testing.assert_array_equal(pixels[0], np.broadcast_to(scale_colours(np.array(0.0)), (3, 3)))
    assert map_pixels(np.zeros((2, 2)))[1] == 1.0
