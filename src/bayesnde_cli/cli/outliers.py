"""`bayesnde outliers`: the rows of lowest density."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer

from bayesnde_cli.cli.applying_options import check_json, finish
from bayesnde_cli.cli.console import Console, cut
from bayesnde_cli.cli.options import AssignmentsOption, JsonOption, QuietOption, RunOption, VerboseOption, with_settings
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.cli.scoring_options import DataArgument, asked_for
from bayesnde_cli.cli.table_output import FormatOption, output_format, table_output
from bayesnde_cli.config import DensityConfig
from bayesnde_cli.errors import BadUsage, escaped
from bayesnde_cli.stages.reporting import aligned

if TYPE_CHECKING:
    import pyarrow as pa

    from bayesnde_cli.stages.applying.outliers import Wanted

# Our own figures, shown with as many decimals in every row.
_NATS = ("log_density", "mc_se")
# Characters between two columns on a terminal.
_BETWEEN = 3


@with_settings(DensityConfig, ("device", "threads"))
def outliers(
    config: DensityConfig,
    data: DataArgument = None,
    top: Annotated[
        int | None, typer.Option(metavar="N", help="So many rows. [default: 10]", show_default=False)
    ] = None,
    quantile: Annotated[
        float | None, typer.Option(metavar="SHARE", help="This share of the rows, for instance 0.01.")
    ] = None,
    observed: Annotated[
        int | None, typer.Option(metavar="N", help="Rank the rows with N observed cells. [default: all cells]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE|-", help="Write the rows here; - is stdout.")
    ] = None,
    format: FormatOption = None,
    run: RunOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    assignments: AssignmentsOption = None,
) -> None:
    """The rows of lowest density, with their rank, error and verdict beside their own columns.

    Rows are scored first if they are not, as by `density`; densities that are there are taken as they are. Rows with
    missing cells are ranked apart from the others: densities of different cells cannot be compared.

    \b
    Example:
      bayesnde outliers
      bayesnde outliers new.csv --top 50 --out strange.csv
      bayesnde outliers --quantile 0.01 --json
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages import scoring
    from bayesnde_cli.stages.applying.outliers import run_outliers

    wanted = _wanted(top, quantile, observed)
    check_json(out, is_json=json)
    if out is None and format:
        raise BadUsage("--format says how to write a table", found="no --out", hint="add --out FILE, or --out -")
    chosen = "" if out is None else output_format(out, format)
    console = Console(quiet=quiet)
    factory = functools.partial(scoring.open_engine, is_verbose=verbose >= 2)
    asked = asked_for(data, None, is_restart=False)
    found = run_outliers(RunLayout(run_directory(run)), asked, config, console, wanted, factory=factory)
    if out is not None:
        with table_output(out, chosen, found.table.schema) as writer:
            for batch in found.table.to_batches():
                writer.write(batch)
    elif not json:
        _show(found.table, console)
    finish(console, found, out, is_json=json)


def _wanted(top: int | None, quantile: float | None, observed: int | None) -> "Wanted":
    from bayesnde_cli.stages.applying.outliers import Wanted

    if top is not None and quantile is not None:
        raise BadUsage("--top and --quantile both say how many rows", found="both", hint="leave one of them out")
    if top is not None and top < 1:
        raise BadUsage("--top must be 1 at least", found=f"--top {top}", hint="give a positive number of rows")
    if quantile is not None and not 0 < quantile <= 1:
        raise BadUsage("--quantile is a share", found=f"--quantile {quantile:g}", hint="give one above 0 and up to 1")
    if observed is not None and observed < 1:
        raise BadUsage("--observed must be 1 at least", found=f"--observed {observed}", hint="give a number of cells")
    return Wanted(10 if top is None else top, quantile, observed)


def _show(table: "pa.Table", console: Console) -> None:
    """The rows for people: on a terminal as many columns as fit, the others are counted."""
    header = [cut(escaped(name)) for name in table.column_names]
    rows = [[cut(_shown(name, cell)) for name, cell in row.items()] for row in table.to_pylist()]
    if not console.out.isatty():
        console.result(aligned(header, rows))
        return
    from rich import box
    from rich.console import Console as RichConsole
    from rich.table import Table as RichTable

    terminal = RichConsole(file=cast(TextIO, console.out), markup=False, highlight=False)
    n_fitting = _n_fitting(header, rows, terminal.width)
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header[:n_fitting]):
        is_number = all(isinstance(cell, int | float | None) for cell in table.column(index).to_pylist())
        shown.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row[:n_fitting])
    terminal.print(shown)
    if n_fitting < len(header):
        console.note(f"not shown: {len(header) - n_fitting} more columns; --out - has them all")


def _n_fitting(header: list[str], rows: list[list[str]], width: int) -> int:
    """How many of the columns, one at least, are not wider than the terminal together."""
    used = 0
    for index in range(len(header)):
        used += _BETWEEN + max(len(row[index]) for row in (header, *rows))
        if used > width:
            return max(1, index)
    return len(header)


def _shown(name: str, cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.4f}" if name in _NATS else f"{cell:.6g}"
    return "" if cell is None else escaped(str(cell))
