"""Folders of images: a row for each file, a column for each pixel, sub-folders as classes. Decoded by Pillow."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bayesnde_cli.errors import BadInput, escaped
from bayesnde_cli.tables.binary_files import ArrayTable, Piece, piece_of
from bayesnde_cli.tables.columns import ImageShape, listed
from bayesnde_cli.tables.sources import LABEL, Source, check_width, refuse_unreadable

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".pnm", ".pbm")
FORMATS = ("PNG", "JPEG", "BMP", "PPM")  # the decoders of Pillow that are used
# Pillow's modes that are grey or RGB, or become so without loss: one bit, and a palette.
_READ_AS = {"L": "L", "1": "L", "RGB": "RGB", "P": "RGB"}


class ImageFolder(Source):
    """A folder given in place of a file: its images, or those of its sub-folders, sorted by path."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        with refuse_unreadable(name):
            found = sorted(_list_files(path))
        self.files = [file for file in found if file.suffix.lower() in SUFFIXES]
        self.n_others = len(found) - len(self.files)
        if not self.files:
            raise BadInput(
                f"{name} is a directory without images",
                found=f"files: {listed([str(file) for file in found]) or 'none'}",
                hint="give the files inside it, or a folder of PNG, JPEG, BMP, PGM or PPM images",
            )
        by_depth = {len(file.parts): file for file in reversed(self.files)}
        if len(by_depth) > 1 or max(by_depth) > 2:
            raise BadInput(
                f"the images in {name} are not sorted into classes",
                found=[f"image: {file}" for _, file in sorted(by_depth.items())],
                hint="put all images into sub-folders, one for each class, or all into the folder itself",
            )


def _list_files(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Return the files of a folder and of the folders in it, relative to it, without hidden ones."""
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_file():
            yield Path(entry.name)
        elif entry.is_dir() and depth < 2:  # deeper images are refused; a link may lead back up
            yield from (entry.name / file for file in _list_files(entry, depth + 1))


def open_image_folder(source: Source) -> ArrayTable:
    """Return the table of a folder of images, all of the size of the first; `label` is the name of the sub-folder."""
    assert isinstance(source, ImageFolder)
    with _open_image(source.path / source.files[0]) as first:
        image = ImageShape(first.height, first.width, 1 if _READ_AS[first.mode] == "L" else 3)
    check_width(source.name, image.n_pixels)

    def read(start: int, stop: int) -> np.ndarray:
        return np.stack([_read_pixels(source, file, image) for file in source.files[start:stop]])

    pieces = [Piece(image.pixel_names(), np.dtype(np.uint8), read)]
    parts = ["images in a folder", f"{len(source.files)} x {image}"]
    if len(source.files[0].parts) > 1:
        # bytes of a folder's name that are not UTF-8 are spelled out
        labels = [file.parts[0].encode("utf-8", "backslashreplace").decode() for file in source.files]
        pieces.append(piece_of((LABEL,), np.array(labels)))
        n_classes = len(set(labels))
        parts.append(f"{LABEL} from {n_classes} sub-folder{'s' * (n_classes != 1)}")
    if source.n_others:
        parts.append(f"{source.n_others} other file{'s' * (source.n_others != 1)} ignored")
    table = ArrayTable(source, pieces, len(source.files), ", ".join(parts), image)
    table.has_own_names = False
    return table


def _read_pixels(source: ImageFolder, file: Path, image: ImageShape) -> np.ndarray:
    """Return the pixels of a file, (n_pixels,) uint8; refuse another size than that of the first file."""
    with _open_image(source.path / file) as opened:
        pixels = np.asarray(opened.convert(_READ_AS[opened.mode]))
    found = ImageShape(*pixels.shape)
    if found != image:
        raise BadInput(
            f"{source.name} holds images of different sizes or colours",
            found=[
                f"{shape.height} x {shape.width}, {'grey' if shape.channels == 1 else 'RGB'}: {source.path / name}"
                for shape, name in ((image, source.files[0]), (found, file))
            ],
            hint="convert them to one size, and all to grey or all to RGB",
        )
    return pixels.reshape(-1)


@contextlib.contextmanager
def _open_image(path: Path) -> Iterator["Image"]:
    """Open an image and read its header; refuse one that is not grey or RGB with eight bits a channel."""
    from PIL import Image

    name = escaped(str(path))
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.mode not in _READ_AS or "transparency" in image.info or _is_deep(image):
                raise BadInput(
                    f"{name} is not a grey or RGB image with eight bits per channel",
                    found=f"mode: {image.mode}{', with transparency' * ('transparency' in image.info)}",
                    hint="convert the images to grey or RGB, values 0 to 255, without transparency",
                )
            yield image
    except BadInput:
        raise
    except Exception as error:  # decoders raise many kinds: OSError, SyntaxError, ValueError, struct.error, ...
        hint = "copy the file again, make it smaller, or remove it from the folder"
        raise BadInput(f"{name} cannot be decoded", found=str(error) or type(error).__name__, hint=hint) from error


def _is_deep(image: "Image") -> bool:
    """Return whether a channel has more than eight bits, which Pillow cuts silently in RGB."""
    decoder_args = [tile[3] for tile in getattr(image, "tile", [])]
    is_cut = any(";16" in args for args in decoder_args if isinstance(args, str))
    largest = [args[1] for args in decoder_args if isinstance(args, tuple) and len(args) == 2]
    return is_cut or (image.format == "PPM" and any(isinstance(value, int) and value > 255 for value in largest))
