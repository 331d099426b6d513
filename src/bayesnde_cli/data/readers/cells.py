"""Cells of text as numbers: which are missing, which are numbers, and what number each is."""

import re

import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.data.readers.table import Kind

MISSING_TOKENS = ("", "NA", "N/A", "#N/A", "<NA>", "na", "n/a", "NaN", "nan", "null", "NULL", "None", "?")

_NUMBER = r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))"
NUMBER = re.compile(_NUMBER)
ARROW_NUMBER = f"^(?:{_NUMBER})$"


class NotANumber(Exception):
    """A cell that is no number, by its position."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def is_number(cell: str, decimal: str = ".") -> bool:
    """Whether a cell, stripped of blanks, is a number under this decimal mark."""
    if decimal == ",":
        cell = cell.replace(".", "!").replace(",", ".")
    return NUMBER.fullmatch(cell) is not None


def cleaned(cells: pa.Array, missing: pa.Array) -> pa.Array:
    """The cells stripped of blanks, null where they are one of the missing tokens."""
    stripped = pc.utf8_trim_whitespace(cells)
    return pc.if_else(pc.is_in(stripped, value_set=missing), pa.scalar(None, pa.string()), stripped)


def kind_of(cells: pa.Array, decimal: str) -> Kind | None:
    """Numbers if more than half of the cells that are there are numbers; None if none is there."""
    n_filled = len(cells) - cells.null_count
    if not n_filled:
        return None
    n_numbers = pc.sum(pc.match_substring_regex(_with_point(cells, decimal), ARROW_NUMBER)).as_py()
    return "number" if 2 * n_numbers > n_filled else "text"


def numbers(cells: pa.Array, decimal: str) -> pa.Array:
    """The cells as float64, null where missing or NaN; `NotANumber` at the first that is none."""
    plain = _with_point(cells, decimal)
    try:
        values = plain.cast(pa.float64())
    except pa.ArrowInvalid as error:
        is_one = pc.fill_null(pc.match_substring_regex(plain, ARROW_NUMBER), True)
        raise NotANumber(pc.index(is_one, False).as_py()) from error
    return nan_as_null(values)


def words(cells: pa.Array) -> pa.Array:
    """Cells of text, whole numbers in one spelling: `17.0` is `17`, as typed files deliver it."""
    return pc.replace_substring_regex(cells, r"^(-?(?:0|[1-9][0-9]*))\.0+$", r"\1")


def nan_as_null(values: pa.Array) -> pa.Array:
    """Floating-point values with every NaN as null."""
    is_nan = pc.is_nan(values)
    if not pc.any(is_nan).as_py():
        return values
    return pc.if_else(is_nan, pa.scalar(None, values.type), values)


def _with_point(cells: pa.Array, decimal: str) -> pa.Array:
    if decimal == ".":
        return cells
    # "1.234" under a decimal comma may be a thousand: not read as a number rather than read wrongly
    return pc.replace_substring(pc.replace_substring(cells, ".", "!"), ",", ".")
