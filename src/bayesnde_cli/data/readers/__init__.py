"""A user's file or files as a table of record batches: recognised by content, streamed, in bounded memory.

    table = open_table([Path("bank.csv")])
    for batch in table.batches(["age", "job"]):
        ...

Text, ARFF (both also gzip), IDX (also gzip), NPY, NPZ, MAT v5 and Parquet are read, and folders of images; "-" is
standard input.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from bayesnde_cli.data.readers.arff import open_arff
from bayesnde_cli.data.readers.formats import format_of
from bayesnde_cli.data.readers.idx import open_idx
from bayesnde_cli.data.readers.image_folder import ImageFolder, open_folder
from bayesnde_cli.data.readers.mat import open_mat
from bayesnde_cli.data.readers.numpy_files import open_npy, open_npz
from bayesnde_cli.data.readers.parquet import open_parquet
from bayesnde_cli.data.readers.several import together
from bayesnde_cli.data.readers.source import Source, source_of
from bayesnde_cli.data.readers.table import MAX_BATCH_ROWS, Table
from bayesnde_cli.data.readers.text import TextTable
from bayesnde_cli.data.readers.text_format import TextFormat, find_layout
from bayesnde_cli.errors import BadInput, escaped

__all__ = ["MAX_BATCH_ROWS", "ImageFolder", "Source", "Table", "TextFormat", "open_sources", "open_table", "sources_of"]

DEFAULT_TEXT = TextFormat()


def open_table(
    paths: Sequence[Path | Literal["-"]], text: TextFormat = DEFAULT_TEXT, *, stdin: BinaryIO | None = None
) -> Table:
    """The table of the files, one below the other; `text` overrides what is found about delimited text."""
    return open_sources(sources_of(paths, stdin=stdin), text)


def sources_of(paths: Sequence[Path | Literal["-"]], *, stdin: BinaryIO | None = None) -> list[Source]:
    """The bytes behind the paths; pipes and standard input are spooled to files that go with the sources."""
    if not paths:
        raise BadInput("no file to read", found="an empty list of files", hint="give a file, or - for a pipe")
    if sum(str(path) == "-" for path in paths) > 1:
        raise BadInput("standard input is given twice", found="- and -", hint="give - once")
    is_one_of_several = len(paths) > 1
    return [
        ImageFolder(Path(path), escaped(str(path)), is_one_of_several=is_one_of_several)
        if str(path) != "-" and Path(path).is_dir()
        else source_of(path, stdin=stdin, is_one_of_several=is_one_of_several)
        for path in paths
    ]


def open_sources(sources: Sequence[Source], text: TextFormat = DEFAULT_TEXT) -> Table:
    """The table of the sources, one below the other."""
    return together([(source.name, _table(source, text)) for source in sources])


def _table(source: Source, text: TextFormat) -> Table:
    if isinstance(source, ImageFolder):
        return open_folder(source)
    match format_of(source):
        case "parquet":
            return open_parquet(source)
        case "npy":
            return open_npy(source)
        case "npz":
            return open_npz(source)
        case "mat":
            return open_mat(source)
        case "idx":
            return open_idx(source)
        case "arff":
            return open_arff(source, text)
        case "text":
            return TextTable(source, find_layout(source, text))
