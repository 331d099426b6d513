"""Pixels of a PNG."""

import base64
import io

import numpy as np
from PIL import Image


def decode_png(png: bytes | str) -> np.ndarray:
    """The pixels of a PNG file or `data:` address, (height, width, 3) uint8."""
    data = base64.b64decode(png.partition(",")[2]) if isinstance(png, str) else png
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
