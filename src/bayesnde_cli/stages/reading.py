"""The user's files as stages read them: in what spelling, and under what name they are recorded."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.canonical import read_object
from bayesnde_cli.artifacts.layout import RunLayout, repair_hint
from bayesnde_cli.data.readers import ImageFolder, Source, TextFormat
from bayesnde_cli.data.schema import SCHEMA_VERSION, Schema
from bayesnde_cli.errors import BadArtifact, BadInput, escaped

if TYPE_CHECKING:
    import pyarrow as pa

# A tab is hard to type in a shell.
_DELIMITER_WORDS = {"\\t": "\t", "tab": "\t"}


def text_format(settings: Mapping[str, Any]) -> TextFormat:
    """How delimited text is spelled, by the settings of `prepare`: later files are read as the first one was."""
    return TextFormat(
        delimiter=_DELIMITER_WORDS.get(settings["delimiter"] or "", settings["delimiter"]),
        quote=settings["quote"],
        header={"auto": None, "yes": True, "no": False}[settings["header"]],
        decimal=settings["decimal"],
        encoding=settings["encoding"],
        missing=tuple(settings["missing_token"]),
    )


def describe_sources(sources: Sequence[Source], data: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The user's files as a manifest records them."""
    pairs = zip(sources, data, strict=True)
    return {f"data-{index}": _described(source, _given(given)) for index, (source, given) in enumerate(pairs)}


def _described(source: Source, given: str) -> dict[str, Any]:
    if isinstance(source, ImageFolder):
        try:
            return manifests.describe_folder(source.path, source.files, given=given)
        except OSError as error:
            raise BadInput(
                f"cannot read {escaped(str(error.filename or source.path))}",
                found=error.strerror or str(error),
                hint="check the file's permissions",
            ) from error
    return manifests.describe_input(source.path, given=given)


def _given(path: Path) -> str:
    """Where the user's file is, for the record and for `status`: absolute, - for stdin, odd bytes spelled out."""
    text = "-" if str(path) == "-" else os.path.abspath(path)
    return text.encode("utf-8", "backslashreplace").decode()


def read_schema(layout: RunLayout) -> Schema:
    """The columns of a prepared run."""
    path = layout.schema_file()
    document = read_object(path, newest=SCHEMA_VERSION)
    try:
        return Schema.from_json(document)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        found = f"{error} is not there" if isinstance(error, KeyError) else str(error)
        raise BadArtifact(f"{path} is damaged", found=found, hint=repair_hint(path)) from error


@contextlib.contextmanager
def odd_rows_refused(path: Path) -> Iterator[None]:
    """Rows of the right columns that no model of ours can take (a class of its own, no value) become `BadArtifact`."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        found = f"there is no class {error}" if isinstance(error, KeyError) else str(error)
        raise BadArtifact(f"{path} is damaged", found=found, hint=repair_hint(path)) from error


def refuse_gaps(table: "pa.Table", names: Iterable[str]) -> None:
    """Raise `ValueError` if a row has no value in one of the columns, which a missing cell of a feature is not."""
    for name in names:
        if table[name].null_count:
            raise ValueError(f"a row without {name}")
