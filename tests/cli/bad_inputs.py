"""Every kind of bad input that we know: how to make it, and the options it is handed in with."""

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class BadInputCase(NamedTuple):
    """A bad input: `make` writes it into a folder and returns the command line after `bayesnde`."""

    name: str
    make: Callable[[Path], list[str]]


GOOD_ROWS = [f"{index * 0.37 % 1:.4f},{index * 0.61 % 1:.4f},{'ab'[index % 2]}" for index in range(100)]


def _column(name: str, cells: list[str]) -> str:
    """A table of a good column x and one more."""
    return f"x,{name}\n" + "".join(f"{index * 0.1},{cell}\n" for index, cell in enumerate(cells))


def good_csv(header: str = "x,y,k") -> str:
    return "\n".join([header, *GOOD_ROWS]) + "\n"


def _text(content: str, *options: str, name: str = "data.csv") -> Callable[[Path], list[str]]:
    return _bytes(content.encode(), *options, name=name)


def _bytes(content: bytes, *options: str, name: str = "data.csv") -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        (folder / name).write_bytes(content)
        return ["prepare", name, *options]

    return make


def _cell(row: int, column: int, cell: str, *options: str) -> Callable[[Path], list[str]]:
    """The good table with one cell changed."""
    rows = [line.split(",") for line in GOOD_ROWS]
    rows[row - 1][column] = cell
    return _text("x,y,k\n" + "\n".join(",".join(line) for line in rows) + "\n", *options)


def _split_by_class() -> str:
    """Class a trains and validates, class b is only for the test."""
    words = [("train", "a"), ("val", "a"), ("test", "b")] * 30
    return "x,s,k\n" + "".join(
        f"{index * 0.37 % 1:.4f},{split},{label}\n" for index, (split, label) in enumerate(words)
    )


def _npy(array: np.ndarray, *, pickled: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=pickled)
    return buffer.getvalue()


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _zip(member: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(member, "content")
    return buffer.getvalue()


def _mat(**variables: object) -> bytes:
    from scipy.io import savemat

    buffer = io.BytesIO()
    savemat(buffer, variables)
    return buffer.getvalue()


def _parquet(**columns: object) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def _directory(folder: Path) -> list[str]:
    (folder / "data.csv").mkdir()
    return ["prepare", "data.csv"]


def _two_files(first: str, second: str, *options: str) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        (folder / "one.csv").write_text(first)
        (folder / "two.csv").write_text(second)
        return ["prepare", "one.csv", "two.csv", *options]

    return make


def _config(content: str) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        (folder / "data.csv").write_text(good_csv())
        (folder / "settings.toml").write_text(content)
        return ["prepare", "data.csv", "--config", "settings.toml"]

    return make


def _numbers(n_rows: int, n_columns: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n_rows, n_columns))


_ARFF = "@relation r\n@attribute x numeric\n@attribute k {a,b}\n@data\n"

CASES = [
    # The file itself
    BadInputCase("a file that is not there", lambda folder: ["prepare", "none.csv"]),
    BadInputCase("a directory", _directory),
    BadInputCase("an empty file", _bytes(b"")),
    BadInputCase("blank lines only", _bytes(b"\n\n\n")),
    BadInputCase("a header and no rows", _text("x,y\n")),
    BadInputCase("binary junk", _bytes(bytes(range(256)) * 10)),
    BadInputCase("a PDF", _bytes(b"%PDF-1.7\n" + bytes(range(256)))),
    BadInputCase("an Excel workbook", _bytes(_zip("xl/workbook.xml"), name="data.xlsx")),
    BadInputCase("another zip archive", _bytes(_zip("letter.txt"), name="data.zip")),
    BadInputCase("HDF5", _bytes(b"\x89HDF\r\n\x1a\n" + bytes(100), name="data.h5")),
    BadInputCase("truncated gzip", _bytes(gzip.compress(good_csv().encode())[:-20], name="data.csv.gz")),
    BadInputCase("stdin twice", lambda folder: ["prepare", "-", "-"]),
    # Text
    BadInputCase("bytes that are not the asked encoding", _text("x,y\n" + "é,1\n" * 60, "--encoding", "ascii")),
    BadInputCase("an unknown encoding", _text(good_csv(), "--encoding", "utf-7000")),
    BadInputCase("a row with too many cells", _text(good_csv() + "1,2,a,4\n")),
    BadInputCase("a row with too few cells", _text(good_csv() + "1\n")),
    BadInputCase("a quote that is never closed", _text(good_csv() + '1,2,"a\n')),
    BadInputCase("duplicate column names", _text(good_csv("x,y,x"))),
    BadInputCase("a name made up for an empty one that is taken", _text(good_csv("c2,,k"))),
    BadInputCase("a separator of two characters", _text(good_csv(), "--delimiter", "::")),
    BadInputCase("text in a numeric column", _cell(17, 0, "oops")),
    BadInputCase("an infinity", _cell(42, 1, "inf")),
    BadInputCase("a number too large for float64", _cell(42, 1, "1e999")),
    BadInputCase("a missing cell", _cell(3, 1, "NA")),
    BadInputCase("a column of free text", _text(_column("t", [f"name {i}" for i in range(1200)]))),
    BadInputCase("a column name with a terminal escape", _text(good_csv("\x1b[31mx,y,k"), "--drop", "z")),
    # Values
    BadInputCase("a constant column", _text(_column("y", ["7"] * 80))),
    BadInputCase("a column that is all missing", _text(_column("y", ["NA"] * 80))),
    BadInputCase("all rows dropped", _text(_column("y", ["NA"] * 80), "--missing", "drop")),
    BadInputCase("too few rows", _text("\n".join(["x,y,k", *GOOD_ROWS[:49]]) + "\n")),
    BadInputCase("every column constant", _text("x,y\n" + "1,2\n" * 80, "--drop-constant")),
    BadInputCase("a class too small to split", _text(good_csv() + "0.1,0.2,c\n", "--condition", "k")),
    BadInputCase("a condition with one class", _text(_column("y", ["a"] * 80), "--condition", "y")),
    BadInputCase("an outlier label that is not 0 or 1", _text(good_csv(), "--outlier-label", "k")),
    BadInputCase("a truth that is text", _text(good_csv(), "--truth", "k")),
    BadInputCase("a split column with an unknown word", _text(good_csv(), "--split-column", "k")),
    BadInputCase("a split column without test rows", _text(_column("k", ["train", "val"] * 40), "--split-column", "k")),
    BadInputCase("an id that repeats", _text(good_csv(), "--id", "k")),
    BadInputCase(
        "an offset that float32 cannot hold",
        _text(_column("t", [f"{1e9 + i % 17 + i / 1e3}" for i in range(80)]), "--scale", "none"),
    ),
    BadInputCase("a reserved column name", _text(good_csv("row_id,y,k"))),
    # Options
    BadInputCase("an unknown column", _text(good_csv(), "--drop", "q")),
    BadInputCase("a column with two roles", _text(good_csv(), "--drop", "k", "--condition", "k")),
    BadInputCase("no feature left", _text(good_csv(), "--drop", "*")),
    BadInputCase("an unknown option", _text(good_csv(), "--scall", "none")),
    BadInputCase("an unknown scale", _text(good_csv(), "--scale", "marginl")),
    BadInputCase("shares that do not sum to one", _text(good_csv(), "--split", "0.5,0.1,0.1")),
    BadInputCase("a seed that is no number", _text(good_csv(), "--seed", "x")),
    BadInputCase("an unknown preset", _text(good_csv(), "--preset", "papr-bank")),
    BadInputCase("an unknown key in a config file", _config("[prepare]\nscal = 'none'\n")),
    BadInputCase("a config file that is no TOML", _config("[prepare\n")),
    BadInputCase("a type that does not exist", _text(good_csv(), "--type", "k=colour")),
    BadInputCase("numbers asked of words", _text(good_csv(), "--type", "k=continuous")),
    BadInputCase("a lattice asked of fractions", _text(good_csv(), "--type", "x=lattice")),
    BadInputCase("noise for a continuous column", _text(good_csv(), "--dequantize", "x=-1,1")),
    BadInputCase("noise that is no interval", _text(good_csv(), "--dequantize", "k=1,-1")),
    BadInputCase(
        "numbers with separators of thousands", _text(_column("y", [f'"{i + 1},{i + 100}.5"' for i in range(80)]))
    ),
    BadInputCase(
        "dates", _text(_column("t", [f"2024-{i % 12 + 1:02d}-{i % 28 + 1:02d} 0{i % 10}:00" for i in range(80)]))
    ),
    BadInputCase("JSON lines", _text('{"x": 1.5}\n' * 60, name="data.jsonl")),
    BadInputCase("a codec that is no text encoding", _text(good_csv(), "--encoding", "rot13")),
    BadInputCase("a number whose square is not finite", _cell(5, 0, "1e300")),
    BadInputCase(
        "shares too small for a row",
        _text(good_csv(), "--split-method", "train-test-split", "--split", "0.98,0.01,0.01", "--condition", "k"),
    ),
    BadInputCase(
        "a split column that keeps a class from training",
        _text(_split_by_class(), "--split-column", "s", "--condition", "k"),
    ),
    BadInputCase("a label asked to be a type", _text(good_csv(), "--condition", "k", "--type", "k=lattice")),
    BadInputCase("an outlier crushes a column in float32", _cell(9, 0, "-1e9", "--scale", "minmax")),
    BadInputCase("a run directory that is a file", _text(good_csv(), "--run", "data.csv")),
    # Several files
    BadInputCase("files with different columns", _two_files(good_csv(), good_csv("x,y,z"))),
    BadInputCase("a good file and an empty one", _two_files(good_csv(), "")),
    # Other formats
    BadInputCase("a pickled NPY", _bytes(_npy(np.array([{}], object), pickled=True), name="data.npy")),
    BadInputCase("a truncated NPY", _bytes(_npy(_numbers(100, 3))[:-50], name="data.npy")),
    BadInputCase("a three-dimensional NPY", _bytes(_npy(np.zeros((60, 2, 2))), name="data.npy")),
    BadInputCase("complex numbers", _bytes(_npy(np.zeros((60, 2), complex)), name="data.npy")),
    BadInputCase("an NPZ without a matrix", _bytes(_npz(a=np.float64(1.0)), name="data.npz")),
    BadInputCase("a MAT file with a structure only", _bytes(_mat(s={"a": 1}), name="data.mat")),
    BadInputCase("a truncated MAT file", _bytes(_mat(X=_numbers(60, 2))[:200], name="data.mat")),
    BadInputCase("a truncated Parquet file", _bytes(_parquet(x=_numbers(60, 1)[:, 0])[:-30], name="data.parquet")),
    BadInputCase("a nested Parquet column", _bytes(_parquet(x=[[1.0, 2.0]] * 60), name="data.parquet")),
    BadInputCase("an IDX file cut short", _bytes(bytes([0, 0, 8, 1, 0, 0, 1, 0]) + bytes(10), name="labels-idx1")),
    BadInputCase("an ARFF file without data", _text("@relation r\n@attribute x numeric\n")),
    BadInputCase("a sparse ARFF file", _text(_ARFF + "{0 1.5}\n" * 60)),
    BadInputCase("an undeclared ARFF category", _text(_ARFF + "1.5,a\n" * 59 + "1.5,c\n")),
]
