"""The first records of a text, split into cells: what delimiter, header and decimal mark are found from."""

import csv
import io
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from bayesnde_cli.data.readers.text_stream import one_tab_between

WHITE_SPACE = " "  # as a delimiter: any run of blanks and tabs
SAMPLE_RECORDS = 100


def sample_of(text: str, *, is_whole: bool) -> str:
    """The first lines of the text; a last line that may be cut off is left out."""
    lines = io.StringIO(text, newline=None)
    taken = list(islice(lines, 2 * SAMPLE_RECORDS))
    if not is_whole and len(taken) > 1 and len(taken) < 2 * SAMPLE_RECORDS:
        taken.pop()
    return "".join(taken)


def records_of(sample: str, delimiter: str, quote: str) -> list[list[str]]:
    """The first records, cells stripped of blanks, without the blank lines."""
    if delimiter == WHITE_SPACE:
        sample, delimiter = one_tab_between(quote)(sample), "\t"
    reader = csv.reader(
        io.StringIO(sample),
        delimiter=delimiter,
        quotechar=quote or None,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        skipinitialspace=True,
    )
    records = list(islice(_until_error(reader), SAMPLE_RECORDS))
    return [record for record in records if len(record) > 1 or record[0]]


def _until_error(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """The stripped cells of each record; a cell without end stops it here and is named when rows are read."""
    with suppress(csv.Error):
        for record in reader:
            yield [cell.strip() for cell in record] or [""]
