"""`bayesnde sample`: new rows of the fitted model."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesnde_cli.cli.applying_options import SETTINGS, ConditionOption
from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import AssignmentsOption, QuietOption, RunOption, VerboseOption, with_settings
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.cli.table_output import FormatOption, OutOption, output_format, table_output
from bayesnde_cli.config import DensityConfig
from bayesnde_cli.errors import BadUsage

if TYPE_CHECKING:
    import pyarrow as pa

    from bayesnde_cli.stages.applying.sample import Sample
    from bayesnde_cli.stages.reporting import Advance


@with_settings(DensityConfig, SETTINGS)
def sample(
    config: DensityConfig,
    n_rows: Annotated[int, typer.Argument(metavar="N", help="How many rows.")],
    condition: ConditionOption = None,
    with_density: Annotated[
        bool, typer.Option("--with-density", help="Score the rows: log_density, mc_se and reliable beside them.")
    ] = False,
    order: Annotated[
        str | None, typer.Option(metavar="density", help="Highest density first; the rows are scored for it.")
    ] = None,
    out: OutOption = Path("-"),
    format: FormatOption = None,
    run: RunOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    assignments: AssignmentsOption = None,
) -> None:
    """New rows of the fitted model, in the units and types of the file that it was fitted to.

    Whole numbers come back as whole numbers, categories as words; classes are as frequent as in training. The first
    rows of a longer sample with the same seed are the shorter sample.

    \b
    Example:
      bayesnde sample 1000 --out new.csv
      bayesnde sample 5 --condition bus
      bayesnde sample 200 --order density --format jsonl
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages import applying, scoring
    from bayesnde_cli.stages.applying.fitted_run import fitted_run
    from bayesnde_cli.stages.applying.sample import BLOCK_ROWS, RowMaker, ScoredSample, by_density

    _check(n_rows, order)
    chosen = output_format(out, format)
    fitted = fitted_run(RunLayout(run_directory(run)), config)
    class_index = None if condition is None else fitted.class_index(condition)
    prior = applying.open_prior(fitted.layout, fitted.config, BLOCK_ROWS, is_verbose=verbose >= 2)
    maker = RowMaker(fitted, prior, class_index)
    made: Sample = maker
    if with_density or order:
        engine = scoring.open_engine(fitted.layout, fitted.config, is_verbose=verbose >= 2).engine
        made = ScoredSample(maker, engine, fitted.block_rows)
    console = Console(quiet=quiet)
    with console.progress("sampling", n_rows, "rows") as advance, table_output(out, chosen, made.columns) as writer:
        batches = _told(made.batches(n_rows), advance)
        for batch in by_density(batches) if order else batches:
            writer.write(batch)
    if str(out) != "-":
        console.note(f"{out}: {n_rows:,} rows, {len(made.columns)} columns")


def _told(batches: "Iterator[pa.RecordBatch]", advance: "Advance") -> "Iterator[pa.RecordBatch]":
    """The batches, with word of each."""
    for batch in batches:
        yield batch
        advance(batch.num_rows)


def _check(n_rows: int, order: str | None) -> None:
    if n_rows < 1:
        raise BadUsage("a sample has one row at least", found=f"N: {n_rows}", hint="give a positive number of rows")
    if order not in (None, "density"):
        raise BadUsage(f"--order cannot be '{order}'", found="orders: density", hint="use --order density")
