"""A small picture as text that an `<img>` or an SVG `<image>` can hold: PNG, written by hand."""

import base64
import struct
import zlib

import numpy as np


def png_bytes(pixels: np.ndarray) -> bytes:
    """A PNG file of 8-bit colours, (height, width, 3) uint8, the first row at the top."""
    height, width, _ = pixels.shape
    # Each line begins with the number of its filter: 0, none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits a channel, colour type 2: RGB
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def enlarged(pixels: np.ndarray, factor: int) -> np.ndarray:
    """The picture with each pixel as a block of so many, so that no viewer blurs it."""
    return np.repeat(np.repeat(pixels, factor, axis=0), factor, axis=1)


def data_uri(pixels: np.ndarray) -> str:
    """The picture as a `data:` address."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(pixels)).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
