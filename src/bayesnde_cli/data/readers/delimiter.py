"""Which characters separate and quote the cells of a text, found from its first lines."""

import re
from collections import Counter
from collections.abc import Sequence

from bayesnde_cli.data.readers.cells import is_number
from bayesnde_cli.data.readers.records import WHITE_SPACE, records_of

CANDIDATES = ("\t", ";", "|", ",", WHITE_SPACE)  # in the order of preference
MIN_AGREEMENT = 0.5  # a few broken rows must not hide the delimiter: the reader will name them

SINGLE_QUOTED = re.compile(r"(?:^|(?<=[\t;|, ]))'[^'\r\n]*'(?=[\t;|, \r\n]|$)", re.MULTILINE)


def find_quote(sample: str) -> str:
    """The double quote, unless single quotes wrap cells and do nothing else."""
    n_wrapped = len(SINGLE_QUOTED.findall(sample))
    return "'" if n_wrapped and '"' not in sample and sample.count("'") == 2 * n_wrapped else '"'


def find_delimiter(sample: str, quote: str, decimal: str | None) -> str:
    """The delimiter on whose number of cells the most lines agree; a comma if there is but one column."""
    best, best_agreement = ",", MIN_AGREEMENT
    for delimiter in CANDIDATES:
        if delimiter == "," == decimal:
            continue
        records = records_of(sample, delimiter, quote)
        agreement = _agreement(records)
        if delimiter == "," and _splits_decimals(records):
            continue
        if agreement > best_agreement:
            best, best_agreement = delimiter, agreement
    # with a decimal comma, the comma must not come back as the delimiter of a single column
    return "\t" if best == "," == decimal else best


def _agreement(records: Sequence[Sequence[str]]) -> float:
    """The share of records with the most frequent number of cells; 0 if that number is one."""
    counts = Counter(len(record) for record in records)
    if not counts:
        return 0.0
    n_cells, n_records = counts.most_common(1)[0]
    return n_records / len(records) if n_cells > 1 else 0.0


def _splits_decimals(records: Sequence[Sequence[str]]) -> bool:
    """Whether the comma stands inside numbers that blanks separate: "1,5 2,5" gives the cell "5 2"."""
    rows = records[1:] or records
    return bool(rows) and all(any(_is_several_numbers(cell) for cell in record) for record in rows)


def _is_several_numbers(cell: str) -> bool:
    tokens = cell.split()
    return len(tokens) > 1 and all(is_number(token) for token in tokens)
