"""The rows of lowest density, as they are in the file."""

from bayesnde_cli.report.blocks import note, section
from bayesnde_cli.report.markup import Markup
from bayesnde_cli.report.report_data import ReportData
from bayesnde_cli.report.tables import table

_MOST_COLUMNS = 10


def lowest(data: ReportData) -> Markup | None:
    """The table of the rows; one of many columns is turned on its side."""
    if data.lowest is None or not data.lowest.rows:
        return None
    text = (
        "Rows are counted from 1, without the header of the file; row_id in tables counts from 0. " + data.lowest.note
    )
    header, rows = data.lowest.header, data.lowest.rows
    if len(header) <= _MOST_COLUMNS:
        shown = table(header, rows, words=(0, 3))
    else:  # a row of the table in each column: many columns make a long table, not a wide one
        flipped = list(zip(header, *rows, strict=True))
        shown = table(flipped[0], flipped[1:])
    return section("lowest", f"The {len(data.lowest.rows)} rows of lowest density", shown, note(text.strip()))
