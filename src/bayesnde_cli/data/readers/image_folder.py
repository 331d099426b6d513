"""A folder of images as a table: a row for each file, a column for each pixel, sub-folders as classes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bayesnde_cli.data.image import ImageShape
from bayesnde_cli.data.readers.array_table import ArrayTable, Piece
from bayesnde_cli.data.readers.image_file import image_shape, read_image
from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.data.readers.table import LABEL, listed
from bayesnde_cli.errors import BadInput, escaped

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".pnm", ".pbm")

# Folders in sub-folders are looked at once, to be refused; a link may lead back up.
_DEEPEST = 2


class ImageFolder(Source):
    """A folder given in place of a file: its images, or those of its sub-folders, sorted by their path."""

    def __init__(self, path: Path, name: str, *, is_one_of_several: bool = False) -> None:
        self.path = path
        self.name = name
        self.is_one_of_several = is_one_of_several
        self.is_gzip = False
        try:
            found = sorted(_files_below(path))
        except OSError as error:
            raise BadInput(
                f"cannot read {name}", found=error.strerror or str(error), hint="check the folder's permissions"
            ) from error
        self.files = [file for file in found if file.suffix.lower() in SUFFIXES]  # relative to the folder
        self.n_others = len(found) - len(self.files)
        if not self.files:
            raise BadInput(
                f"{name} is a directory without images",
                found=f"files: {listed([file.as_posix() for file in found]) or 'none'}",
                hint="give the files inside it, or a folder of PNG, JPEG, BMP, PGM or PPM images",
            )
        self._refuse_odd_places()

    def file_name(self, file: Path) -> str:
        """How messages speak of one of the images."""
        return escaped(str(self.path / file))

    def labels(self) -> list[str] | None:
        """The sub-folder of every image; None if there are none."""
        if len(self.files[0].parts) == 1:
            return None
        # a name that is no UTF-8 is spelled out
        return [file.parts[0].encode("utf-8", "backslashreplace").decode() for file in self.files]

    def _refuse_odd_places(self) -> None:
        by_depth = {len(file.parts): file for file in reversed(self.files)}
        if max(by_depth) > 2:
            raise BadInput(
                f"{self.name} has folders in its sub-folders",
                found=f"image: {self.file_name(by_depth[max(by_depth)])}",
                hint="put the images of a class into one folder, and these into the folder that you give",
            )
        if len(by_depth) > 1:
            raise BadInput(
                f"{self.name} holds images with and without a class",
                found=[
                    f"in a sub-folder: {self.file_name(by_depth[2])}",
                    f"in none: {self.file_name(by_depth[1])}",
                ],
                hint="put all images into sub-folders, one for each class, or none",
            )


def open_folder(source: ImageFolder) -> ArrayTable:
    """The table of a folder of images, all of the size of the first; `label` is the name of the sub-folder."""
    first = source.path / source.files[0]
    image = image_shape(first, source.file_name(source.files[0]))
    pieces = [Piece(image.pixel_names(), np.dtype(np.uint8), _pixels(source, image))]
    labels = source.labels()
    parts = ["images in a folder", f"{len(source.files)} x {image}"]
    if labels is not None:
        words = np.array(labels)
        pieces.append(Piece((LABEL,), words.dtype, _slices(words)))
        n_classes = len(set(labels))
        parts.append(f"{LABEL} from {n_classes} sub-folder{'s' * (n_classes != 1)}")
    if source.n_others:
        parts.append(f"{source.n_others} other file{'s' * (source.n_others != 1)} ignored")
    table = ArrayTable(source, pieces, len(source.files), ", ".join(parts))
    table.has_own_names = False
    table.image = image
    return table


def _files_below(folder: Path, depth: int = 0) -> Iterator[Path]:
    """The files of a folder and of the folders in it, relative to it; hidden ones are nobody's data."""
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_file():
            yield Path(entry.name)
        elif entry.is_dir() and depth < _DEEPEST:
            yield from (entry.name / file for file in _files_below(entry, depth + 1))


def _pixels(source: ImageFolder, image: ImageShape) -> Callable[[int], Iterator[np.ndarray]]:
    """Blocks of images laid flat, (n, n_pixels) uint8, each file read when its block is wanted."""

    def blocks(n_rows: int) -> Iterator[np.ndarray]:
        for start in range(0, len(source.files), n_rows):
            files = source.files[start : start + n_rows]
            pixels = np.empty((len(files), image.n_pixels), np.uint8)
            for row, file in zip(pixels, files, strict=True):
                row[:] = _same_size(source, file, image).reshape(-1)
            yield pixels

    return blocks


def _same_size(source: ImageFolder, file: Path, image: ImageShape) -> np.ndarray:
    """The pixels of an image, (h, w, channels), which must have the size of the first one."""
    pixels = read_image(source.path / file, source.file_name(file))
    found = ImageShape(*pixels.shape)
    if found != image:
        raise BadInput(
            f"{source.name} holds images of different sizes or colours",
            found=[
                f"{_sized(image)}: {source.file_name(source.files[0])}",
                f"{_sized(found)}: {source.file_name(file)}",
            ],
            hint="bring them to one size, and all to grey or all to RGB",
        )
    return pixels


def _sized(image: ImageShape) -> str:
    return f"{image.height} x {image.width}, {'grey' if image.channels == 1 else 'RGB'}"


def _slices(words: np.ndarray) -> Callable[[int], Iterator[np.ndarray]]:
    def blocks(n_rows: int) -> Iterator[np.ndarray]:
        return (words[start : start + n_rows, None] for start in range(0, len(words), n_rows))

    return blocks
