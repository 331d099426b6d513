"""`bayesnde density`: the log-density of every row, with its error and a verdict."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import JsonOption, QuietOption, RestartOption, RunOption, VerboseOption, with_settings
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.cli.scoring_options import DataArgument, ShardOption, asked_for
from bayesnde_cli.cli.table_output import FormatOption, output_format, table_output
from bayesnde_cli.config import DensityConfig
from bayesnde_cli.errors import BadUsage

if TYPE_CHECKING:
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages.scoring import Scored


@with_settings(DensityConfig)
def density(
    config: DensityConfig,
    data: DataArgument = None,
    shard: ShardOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE|-", help="Write the table here, too; - is stdout.")
    ] = None,
    format: FormatOption = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B,C", help="Columns of --out, in this order; patterns work. [default: all]"),
    ] = None,
    run: RunOption = None,
    restart: RestartOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """The log-density of every row, with its Monte-Carlo error and a verdict.

    Draws that `posterior` made with the same settings are used, the others are made. Rows are worked on in blocks,
    which any number of processes may share; without --shard the missing ones are computed and all are combined. A row
    with missing cells gets the density of its other cells.

    \b
    Example:
      bayesnde density
      bayesnde density new.csv --out scored.csv --columns row_id,log_density,mc_se
      bayesnde density --shard 3/8
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages.scoring import Scored, open_engine, run_density

    _check_output(out, format, columns, shard, is_json=json)
    chosen = None if out is None else output_format(out, format)
    console = Console(quiet=quiet)
    layout = RunLayout(run_directory(run))
    factory = functools.partial(open_engine, is_verbose=verbose >= 2)
    asked = asked_for(data, shard, is_restart=restart)
    outcome = run_density(layout, asked, config, console, columns=columns or (), factory=factory)
    if out is not None and chosen is not None and isinstance(outcome, Scored):
        _write(layout, outcome, out, chosen)
    if out is not None and str(out) == "-":
        console.note(str(outcome))
    else:
        console.finish(outcome, is_json=json)


def _check_output(
    out: Path | None, format: str | None, columns: list[str] | None, shard: str | None, *, is_json: bool
) -> None:
    """Refuse, before the long work, options that do not go together."""
    if out is None and (format or columns):
        option = "--format" if format else "--columns"
        raise BadUsage(f"{option} says how to write a table", found="no --out", hint="add --out FILE, or --out -")
    if out is not None and shard is not None:
        raise BadUsage(
            "--out writes the whole table, and --shard computes a part of it",
            found=f"--out {out} --shard {shard}",
            hint="run all shards first, then once without --shard",
        )
    if out is not None and str(out) == "-" and is_json:
        raise BadUsage("--json and --out - both write to stdout", found="both", hint="leave one of them out")


def _write(layout: "RunLayout", scored: "Scored", out: Path, format: str) -> None:
    """Write the table for the user, a batch at a time."""
    from bayesnde_cli.artifacts.tables import iter_batches
    from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION

    path = layout.density_file(scored.set_name)
    batches = (
        batch.select(scored.columns).replace_schema_metadata(None)
        for batch in iter_batches(path, DENSITY_SCHEMA, scored.columns, schema_version=DENSITY_VERSION)
    )
    first = next(batches)
    with table_output(out, format, first.schema) as writer:
        writer.write(first)
        for batch in batches:
            writer.write(batch)
