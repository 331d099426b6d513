"""Files of typed columns: Parquet, the arrays of NPY, NPZ, MAT and IDX files, and folders of images.

Nothing is unpickled.
"""

import contextlib
import math
import struct
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from bayesnde_cli.errors import BadInput, escaped
from bayesnde_cli.tables import sources
from bayesnde_cli.tables.columns import ImageShape, listed, quoted, shape_of_array
from bayesnde_cli.tables.sources import CellType, Source, Table

if TYPE_CHECKING:
    from PIL.Image import Image

BLOCK_CELLS = 4 << 20  # 32 MiB as float64: rows of images have many columns
NUMBER_KINDS = "biuf"  # NumPy's letters for bool, integers and floats
READ_KINDS = NUMBER_KINDS + "U"  # and text
MAT_NUMBERS = ("double", "single", "logical", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))

_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".pgm", ".ppm", ".pnm", ".pbm")
_IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "PPM")  # the decoders of Pillow that are used
# Pillow's modes that are grey or RGB, or become so without loss: one bit, and a palette.
_IMAGE_MODES = {"L": "L", "1": "L", "RGB": "RGB", "P": "RGB"}
_RESHAPE = "save the rows as one array of (rows, columns), and images as bytes, `array.astype(np.uint8)`"
_SMALLER = "save the matrix alone, or as CSV or NPY"


class TypedTable(Table):
    """Columns with declared types, which are converted to numbers or text when they are read."""

    def __init__(
        self, source: Source, columns: Sequence[tuple[str, pa.DataType]], n_rows: int, description: str
    ) -> None:
        self.source = source
        self.types = dict(columns)
        self.names = tuple(name for name, _ in columns)
        self.n_rows = n_rows
        self.description = description

    @abstractmethod
    def read(self, columns: Sequence[str]) -> Iterator[Mapping[str, pa.Array]]:
        """Return blocks of rows of the columns, with their declared types."""

    def kinds(self, columns: Sequence[str]) -> dict[str, CellType | None]:
        return {name: self._kind(name) for name in columns}

    def batches_as(self, kinds: Mapping[str, CellType]) -> Iterator[pa.RecordBatch]:
        with self.source.refuse_damage(f"{self.description.partition(',')[0]} file"):
            for block in self.read(list(kinds)):
                columns = [self._convert(name, block[name], kind) for name, kind in kinds.items()]
                yield pa.RecordBatch.from_arrays(columns, list(kinds))

    def _kind(self, name: str) -> CellType | None:
        declared = self.types[name]
        stored = declared.value_type if pt.is_dictionary(declared) else declared
        if pt.is_null(stored):
            return None
        if pt.is_integer(stored) or pt.is_floating(stored) or pt.is_decimal(stored) or pt.is_boolean(stored):
            return "number"
        if pt.is_string(stored) or pt.is_large_string(stored) or pt.is_string_view(stored):
            return "text"
        raise self._unsupported(name)

    def _convert(self, name: str, column: pa.Array, kind: CellType) -> pa.Array:
        column.validate(full=True)  # strings that are not UTF-8, positions beyond a dictionary
        if pt.is_dictionary(column.type):
            column = column.dictionary_decode()
        column = sources.nan_as_null(column) if pt.is_floating(column.type) else column
        if kind == "number":
            return column.cast(pa.float64(), safe=False)  # integers beyond 2^53 are rounded to the nearest double
        if pt.is_binary(column.type):
            raise self._unsupported(name)
        try:
            return sources.normalise_words(column.cast(pa.string()))
        except pa.ArrowNotImplementedError as error:
            raise self._unsupported(name) from error

    def _unsupported(self, name: str) -> BadInput:
        is_convertible = not pt.is_nested(self.types[name]) and not pt.is_binary(self.types[name])
        remedy = f"use `--type {quoted(name)}=categorical`" if is_convertible else "flatten it into columns of numbers"
        return BadInput(
            f"column '{name}' of {self.source.name} holds neither numbers nor text",
            found=f"type: {self.types[name]}",
            hint=f"{remedy}, or use `--drop {quoted(name)}`",
        )


class ParquetTable(TypedTable):
    """A Parquet file, read batch by batch."""

    def read(self, columns: Sequence[str]) -> Iterator[Mapping[str, pa.Array]]:
        # pre_buffer would hold the whole file in memory
        with pq.ParquetFile(self.source.path, pre_buffer=False) as file:
            for batch in file.iter_batches(sources.MAX_BATCH_ROWS, columns=list(columns)):
                yield dict(zip(batch.schema.names, batch.columns, strict=True))


def open_parquet(source: Source) -> Table:
    """Return the table of a Parquet file."""
    with source.refuse_damage("Parquet file"), pq.ParquetFile(source.path) as file:
        columns = list(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    largest = max((group.total_byte_size for group in groups), default=0)
    sources.check_memory(source.name, largest, hint="write the file with smaller row groups")
    n_rows = sum(group.num_rows for group in groups)
    return ParquetTable(source, columns, n_rows, f"Parquet, {n_rows} x {len(columns)}")


class Piece(NamedTuple):
    """Some columns of an array table; `read(start, stop)` returns these rows, (rows, columns)."""

    names: tuple[str, ...]
    dtype: np.dtype
    read: Callable[[int, int], np.ndarray]


def piece_of(names: tuple[str, ...], array: np.ndarray) -> Piece:
    """Return the columns of an array whose first axis is the rows."""
    return Piece(names, array.dtype, lambda start, stop: array[start:stop].reshape(stop - start, -1))


class ArrayTable(TypedTable):
    """Arrays of equal length, side by side."""

    def __init__(
        self, source: Source, pieces: Sequence[Piece], n_rows: int, description: str, image: ImageShape | None = None
    ) -> None:
        columns = [
            (name, pa.string() if piece.dtype.kind == "U" else pa.float64()) for piece in pieces for name in piece.names
        ]
        super().__init__(source, columns, n_rows, description)
        self.pieces = tuple(pieces)
        self.image = image
        self.is_vector = False  # one array with one axis, which may hold the labels of the array before it

    def read(self, columns: Sequence[str]) -> Iterator[Mapping[str, pa.Array]]:
        wanted = set(columns)
        used = [piece for piece in self.pieces if not wanted.isdisjoint(piece.names)]
        n_rows, width = self.n_rows or 0, max(len(piece.names) for piece in used)
        n_block_rows = min(sources.MAX_BATCH_ROWS, max(1, BLOCK_CELLS // width))
        for start in range(0, n_rows, n_block_rows):
            block: dict[str, pa.Array] = {}
            for piece in used:
                rows = piece.read(start, min(start + n_block_rows, n_rows))
                pairs = zip(piece.names, rows.T, strict=True)
                block |= {name: _as_arrow(cells) for name, cells in pairs if name in wanted}
            yield block

    def join_labels(self, vector: Table) -> Table | None:
        """Return this bare array with a bare vector of equal length as the column `label`."""
        is_bare = not self.has_own_names and not self.is_vector and sources.LABEL not in self.names
        if not (is_bare and isinstance(vector, ArrayTable) and vector.is_vector and vector.n_rows == self.n_rows):
            return None
        pieces = (*self.pieces, vector.pieces[0]._replace(names=(sources.LABEL,)))
        description = f"{self.description} with {sources.LABEL} from {vector.source.name}"
        table = ArrayTable(self.source, pieces, vector.n_rows or 0, description, self.image)
        table.has_own_names = False
        return table


def _as_arrow(cells: np.ndarray) -> pa.Array:
    if cells.dtype.kind == "U":
        return pa.array(cells.tolist(), pa.string())
    # Arrow takes the machine's byte order and knows no long doubles. A copy, so that the block is not kept alive.
    dtype = np.float64 if cells.dtype.itemsize > 8 else cells.dtype.newbyteorder("=")
    return pa.array(cells.astype(dtype))


def open_npy(source: Source) -> Table:
    """Return the table of an NPY file: c1, c2, ... for one or two axes, the pixels of images for three or four."""
    with source.refuse_damage("NPY file"):
        with source.open() as stream:
            dtype = _read_dtype(stream)
        if dtype.kind not in READ_KINDS:
            hint = "save numbers: `np.save(file, array.astype(float))`"
            raise BadInput(f"{source.name} holds neither numbers nor text", found=f"dtype: {dtype}", hint=hint)
        array = np.load(source.path, mmap_mode="r", allow_pickle=False)  # read page by page as its rows are
    image = shape_of_array(array.shape, dtype)
    return _open_array(source, array, f"NPY, {_describe_shape(array.shape)} {dtype}", image)


def open_idx(source: Source) -> Table:
    """Return the table of an IDX file (the format of MNIST): images as their pixels, otherwise c1, c2, ..."""
    with source.refuse_damage("IDX file"), source.open() as stream:
        _, _, code, n_axes = stream.read(4)
        shape = struct.unpack(f">{n_axes}I", stream.read(4 * n_axes))
        dtype = np.dtype(sources.IDX_TYPES[code])
        n_bytes = math.prod(shape) * dtype.itemsize
        sources.check_memory(source.name, n_bytes, hint=_SMALLER)
        array: np.ndarray = np.frombuffer(stream.read(n_bytes), dtype, math.prod(shape)).reshape(shape)
    description = f"IDX, {_describe_shape(shape)}{', gzip' if source.is_gzip else ''}"
    table = _open_array(source, array, description, ImageShape(*shape[1:]) if n_axes in (3, 4) else None)
    table.image = shape_of_array(shape, dtype)  # only images of bytes are modelled as images
    return table


def _open_array(source: Source, array: np.ndarray, description: str, pixels: ImageShape | None) -> ArrayTable:
    if array.ndim not in (1, 2) and pixels is None:
        found = f"shape: {_describe_shape(array.shape) or 'a single number'}"
        raise BadInput(f"{source.name} is an array of {array.ndim} axes", found=found, hint=_RESHAPE)
    piece = piece_of(_name_columns(source, array, pixels), array)
    table = ArrayTable(source, [piece], len(array), description, pixels)
    table.has_own_names = False
    table.is_vector = array.ndim == 1
    return table


def _name_columns(source: Source, array: np.ndarray, pixels: ImageShape | None) -> tuple[str, ...]:
    n_columns = math.prod(array.shape[1:])
    sources.check_width(source.name, n_columns)  # before the names are made
    return pixels.pixel_names() if pixels and n_columns else sources.made_up_names(n_columns)


def open_npz(source: Source) -> Table:
    """Return the table of an NPZ file: its largest matrix, and the vectors of equal length by their keys."""
    dtypes: dict[str, np.dtype] = {}
    with source.refuse_damage("NPZ file"):
        with zipfile.ZipFile(source.path) as archive:
            n_bytes = sum(member.file_size for member in archive.infolist())
            sources.check_memory(source.name, n_bytes, hint=_SMALLER)
            for name in archive.namelist():
                with archive.open(name) as stream:
                    dtypes[name.removesuffix(".npy")] = _read_dtype(stream)
        unreadable = {key: str(dtype) for key, dtype in dtypes.items() if dtype.kind not in READ_KINDS}
        with np.load(source.path, allow_pickle=False) as loaded:
            arrays = {key: loaded[key] for key in dtypes if key not in unreadable}
    return _select_arrays(source, "NPZ", arrays, unreadable)


def open_mat(source: Source) -> Table:
    """Return the table of a MAT file: its largest matrix, and the vectors of equal length by their names."""
    from scipy.io import loadmat, whosmat

    with source.refuse_damage("MAT file"):
        variables = whosmat(source.path)
        shapes = {name: shape for name, shape, kind in variables if kind in MAT_NUMBERS}
        # at least one byte a number
        sources.check_memory(source.name, sum(map(math.prod, shapes.values())), hint=_SMALLER)
        loaded = loadmat(source.path, variable_names=list(shapes)) if shapes else {}
        arrays = {name: loaded[name] for name in shapes if loaded[name].dtype.kind != "c"}
    unreadable = {name: "complex" if name in shapes else kind for name, _, kind in variables if name not in arrays}
    return _select_arrays(source, "MAT v5", arrays, unreadable)


def _select_arrays(
    source: Source, format_name: str, arrays: Mapping[str, np.ndarray], unreadable: Mapping[str, str]
) -> ArrayTable:
    """Return the largest numeric matrix as c1, c2, ... or as pixels, and every vector of as many rows by its key.

    Without a matrix the longest vectors are the table. The description names the arrays that are ignored.
    """
    is_npz = format_name == "NPZ"
    images = {key: shape_of_array(array.shape, array.dtype) if is_npz else None for key, array in arrays.items()}
    vectors = {
        key: array.reshape(-1)
        for key, array in arrays.items()
        if array.ndim == 1 or (array.ndim == 2 and 1 in array.shape)
    }
    matrices = {
        key: array
        for key, array in arrays.items()
        if images[key] or (array.ndim == 2 and key not in vectors and array.dtype.kind in NUMBER_KINDS)
    }
    # without a matrix, an array with more axes was meant to be the rows, and the vectors are its labels
    if not matrices and (not vectors or any(array.ndim > 2 for array in arrays.values())):
        contents = [f"{key} ({_describe_shape(array.shape) or 'single'})" for key, array in arrays.items()]
        contents += [f"{key} ({what})" for key, what in unreadable.items()]
        found = f"arrays: {', '.join(contents)}" if contents else "no array"
        raise BadInput(f"{source.name} holds no numeric matrix", found=found, hint=_RESHAPE)
    pieces, parts, image = [], [format_name], None
    n_rows = max(map(len, vectors.values()), default=0)
    chosen = max(matrices, key=lambda key: matrices[key].size, default=None)
    if chosen is not None:
        matrix, image = matrices[chosen], images[chosen]
        n_rows = len(matrix)
        pieces.append(piece_of(_name_columns(source, matrix, image), matrix))
        parts.append(f"{escaped(chosen)} {_describe_shape(matrix.shape)}")
    labels = {key: vector for key, vector in vectors.items() if len(vector) == n_rows}
    pieces += [piece_of((key,), vector) for key, vector in labels.items()]
    parts += [f"{escaped(key)} {n_rows} x 1" for key in labels]
    ignored = [escaped(key) for key in (*arrays, *unreadable) if key != chosen and key not in labels]
    parts += [f"ignored: {', '.join(ignored)}"] if ignored else []
    return ArrayTable(source, pieces, n_rows, ", ".join(parts), image)


def _read_dtype(stream: IO[bytes]) -> np.dtype:
    """Return the dtype in the header of an NPY file."""
    is_first_version = np.lib.format.read_magic(stream) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if is_first_version else np.lib.format.read_array_header_2_0
    return read(stream)[2]


def _describe_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


# Folders of images: a row for each file, a column for each pixel, sub-folders as classes


class ImageFolder(Source):
    """A folder given in place of a file: its images, or those of its sub-folders, sorted by path."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        with sources.refuse_unreadable(name):
            found = sorted(_list_files(path))
        self.files = [file for file in found if file.suffix.lower() in _IMAGE_SUFFIXES]
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
        image = ImageShape(first.height, first.width, 1 if _IMAGE_MODES[first.mode] == "L" else 3)
    sources.check_width(source.name, image.n_pixels)

    def read(start: int, stop: int) -> np.ndarray:
        return np.stack([_read_pixels(source, file, image) for file in source.files[start:stop]])

    pieces = [Piece(image.pixel_names(), np.dtype(np.uint8), read)]
    parts = ["images in a folder", f"{len(source.files)} x {image}"]
    if len(source.files[0].parts) > 1:
        # bytes of a folder's name that are not UTF-8 are spelled out
        labels = [file.parts[0].encode("utf-8", "backslashreplace").decode() for file in source.files]
        pieces.append(piece_of((sources.LABEL,), np.array(labels)))
        n_classes = len(set(labels))
        parts.append(f"{sources.LABEL} from {n_classes} sub-folder{'s' * (n_classes != 1)}")
    if source.n_others:
        parts.append(f"{source.n_others} other file{'s' * (source.n_others != 1)} ignored")
    table = ArrayTable(source, pieces, len(source.files), ", ".join(parts), image)
    table.has_own_names = False
    return table


def _read_pixels(source: ImageFolder, file: Path, image: ImageShape) -> np.ndarray:
    """Return the pixels of a file, (n_pixels,) uint8; refuse another size than that of the first file."""
    with _open_image(source.path / file) as opened:
        pixels = np.asarray(opened.convert(_IMAGE_MODES[opened.mode]))
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
        with Image.open(path, formats=_IMAGE_FORMATS) as image:
            if image.mode not in _IMAGE_MODES or "transparency" in image.info or _is_deep(image):
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


OPENERS: dict[sources.Format, Callable[[Source], Table]] = {
    "parquet": open_parquet,
    "npy": open_npy,
    "npz": open_npz,
    "mat": open_mat,
    "idx": open_idx,
    "images": open_image_folder,
}
