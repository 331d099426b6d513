"""One image file as bytes: grey or RGB, eight bits, no transparency. Decoded by Pillow."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bayesnde_cli.data.image import ImageShape
from bayesnde_cli.data.readers.bounds import MAX_COLUMNS
from bayesnde_cli.errors import BadInput, one_line

if TYPE_CHECKING:
    from PIL.Image import Image

# Of all that Pillow reads: the fewer decoders, the fewer surprises.
FORMATS = ("PNG", "JPEG", "BMP", "PPM")
# Pillow's modes that are grey or RGB as they are, or become so without loss: one bit, and a palette.
_READ_AS = {"L": "L", "1": "L", "RGB": "RGB", "P": "RGB"}
_WITH_TRANSPARENCY = ("LA", "La", "PA", "RGBA", "RGBa")
_LARGEST_BYTE = 255


def image_shape(path: Path, name: str) -> ImageShape:
    """The size of an image, by its header; one that is not grey or RGB of eight bits is refused."""
    with _opened(path, name) as image:
        return _shape(image)


def read_image(path: Path, name: str) -> np.ndarray:
    """The pixels, (h, w) or (h, w, 3) uint8."""
    with _opened(path, name) as image:
        return np.asarray(image.convert(_READ_AS[image.mode]))


def _shape(image: "Image") -> ImageShape:
    return ImageShape(image.height, image.width, 1 if _READ_AS[image.mode] == "L" else 3)


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator["Image"]:
    """The image, of which the header is read and nothing else."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, which we refuse ourselves, and of odd metadata
            with Image.open(path, formats=FORMATS) as image:
                _refuse_odd(image, name)
                yield image
    except BadInput:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large(name, one_line(str(error))) from error
    except UnidentifiedImageError as error:
        raise _damaged(name, "it does not begin as a PNG, JPEG, BMP, PGM or PPM file does") from error
    except Exception as error:  # decoders let many sorts out: OSError, SyntaxError, ValueError, struct.error, …
        raise _damaged(name, one_line(str(error)) or type(error).__name__) from error


def _refuse_odd(image: "Image", name: str) -> None:
    if image.mode in _WITH_TRANSPARENCY or "transparency" in image.info:
        raise BadInput(
            f"{name} has transparent pixels",
            found=f"colours: {image.mode}",
            hint="convert the images to grey or RGB without transparency",
        )
    if _is_deep(image):
        raise BadInput(
            f"{name} has more than eight bits in a pixel",
            found=f"colours: {image.mode}",
            hint="convert the images to eight bits, values from 0 to 255",
        )
    if image.mode not in _READ_AS:
        raise BadInput(
            f"{name} is neither grey nor RGB",
            found=f"colours: {image.mode}",
            hint="convert the images to grey or RGB",
        )
    if (shape := _shape(image)).n_pixels > MAX_COLUMNS:  # before it is unpacked
        raise _too_large(name, f"{shape}: {shape.n_pixels:,} values, {MAX_COLUMNS:,} are the most")


def _is_deep(image: "Image") -> bool:
    """Whether there are more than eight bits a channel; Pillow would cut those of RGB down without a word."""
    how = [tile[3] for tile in getattr(image, "tile", [])]
    is_cut = any(";16" in part for part in how if isinstance(part, str))
    most = [part[1] for part in how if isinstance(part, tuple) and len(part) == 2 and isinstance(part[1], int)]
    is_scaled = image.format == "PPM" and any(value > _LARGEST_BYTE for value in most)
    return image.mode.startswith(("I", "F")) or is_cut or is_scaled


def _too_large(name: str, found: str) -> BadInput:
    return BadInput(f"{name} is too large an image", found=found, hint="make the images smaller")


def _damaged(name: str, found: str) -> BadInput:
    return BadInput(
        f"{name} is a truncated or damaged image", found=found, hint="copy the file again, or take it out of the folder"
    )
