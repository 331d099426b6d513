"""Open files of the working directory, read them whole, and catch refusals."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from bayesnde_cli.errors import BadInput
from bayesnde_cli.tables.sources import Table, TextFormat, open_sources, sources_of


def opened(*names: str, **said: object) -> Table:
    """Return the table of files; `said` is what the user says about the text."""
    return open_sources(sources_of([Path(name) for name in names]), TextFormat(**said))  # type: ignore[arg-type]


def opened_text(*contents: str | bytes, **said: object) -> Table:
    """Write contents to a.csv, b.csv, ... and open them."""
    names = [f"{letter}.csv" for letter in "abcdefghi"[: len(contents)]]
    for name, content in zip(names, contents, strict=True):
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return opened(*names, **said)


def read(table: Table, columns: Sequence[str] | None = None, as_text: Sequence[str] = ()) -> dict[str, list]:
    """Return all cells of a table by column."""
    return pa.Table.from_batches(table.batches(columns, as_text=as_text)).to_pydict()


def refusal(*names: str, columns: Sequence[str] | None = None, as_text: Sequence[str] = ()) -> str:
    """Return the whole message with which files are refused, when they are opened or read."""
    with pytest.raises(BadInput) as caught:
        list(opened(*names).batches(columns, as_text=as_text))
    return str(caught.value)


def text_refusal(*contents: str | bytes, **said: object) -> str:
    """Return the message with which a.csv, b.csv, ... of these contents are refused."""
    with pytest.raises(BadInput) as caught:
        list(opened_text(*contents, **said).batches())
    return str(caught.value)
