"""`bayesnde sample`: new rows of the fitted model."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesnde_cli.cli.applying_options import SETTINGS
from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import AssignmentsOption, QuietOption, RunOption, VerboseOption, with_settings
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.cli.table_output import FormatOption, output_format, table_output
from bayesnde_cli.config import DensityConfig
from bayesnde_cli.errors import BadUsage

if TYPE_CHECKING:
    import pyarrow as pa

    from bayesnde_cli.stages.applying.fitted_run import FittedRun
    from bayesnde_cli.stages.applying.sample import Sample
    from bayesnde_cli.stages.reporting import Advance

_PICTURES = (".png", ".svg")


@with_settings(DensityConfig, SETTINGS)
def sample(
    config: DensityConfig,
    n_rows: Annotated[int, typer.Argument(metavar="N", help="How many rows; with --condition all, of every class.")],
    condition: Annotated[
        str | None,
        typer.Option(metavar="CLASS|all", help="Given this class, or every one. [default: as often as in training]"),
    ] = None,
    with_density: Annotated[
        bool, typer.Option("--with-density", help="Score the rows: log_density, mc_se and reliable beside them.")
    ] = False,
    order: Annotated[
        str | None, typer.Option(metavar="density", help="Highest density first; the rows are scored for it.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE|-",
            help="Where to write the rows; - is stdout. FILE.png or FILE.svg: images as a sheet of pictures.",
        ),
    ] = Path("-"),
    format: FormatOption = None,
    run: RunOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    assignments: AssignmentsOption = None,
) -> None:
    """New rows of the fitted model, in the units and types of the file that it was fitted to.

    Whole numbers come back as whole numbers, categories as words; classes are as frequent as in training. The first
    rows of a longer sample with the same seed are the shorter sample.

    A sheet of pictures, for runs of images, has a row for each class with --condition all, else it is about square. It
    shows images as they are drawn, with the noise of the model; with --order density, each row's likeliest first.

    \b
    Example:
      bayesnde sample 1000 --out new.csv
      bayesnde sample 5 --condition bus
      bayesnde sample 200 --order density --format jsonl
      bayesnde sample 10 --condition all --order density --out sheet.png
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages import applying, scoring
    from bayesnde_cli.stages.applying.fitted_run import fitted_run
    from bayesnde_cli.stages.applying.sample import BLOCK_ROWS, RowMaker, ScoredSample, by_density
    from bayesnde_cli.stages.applying.sample_sheet import check_sheet

    _check(n_rows, order)
    is_sheet = format is None and out.suffix.lower() in _PICTURES and not out.is_dir()
    chosen = "" if is_sheet else output_format(out, format, pictures=_PICTURES)
    fitted = fitted_run(RunLayout(run_directory(run)), config)
    classes = fitted.chosen_classes(condition)
    n_rows *= max(len(classes), 1)
    if is_sheet:
        check_sheet(fitted, n_rows, str(out))
    prior = applying.open_prior(fitted.layout, fitted.config, BLOCK_ROWS, is_verbose=verbose >= 2)
    maker = RowMaker(fitted, prior, classes)
    made: Sample = maker
    if with_density or order:
        engine = scoring.open_engine(fitted.layout, fitted.config, is_verbose=verbose >= 2).engine
        made = ScoredSample(maker, engine, fitted.block_rows)
    console = Console(quiet=quiet)
    with console.progress("sampling", n_rows, "rows") as advance:
        batches = _told(made.batches(n_rows), advance)
        if is_sheet:
            words = _draw(fitted, by_density(batches) if order else batches, out, is_by_class=len(classes) > 1)
        else:
            words = f"{n_rows:,} rows, {len(made.columns)} columns"
            with table_output(out, chosen, made.columns) as writer:
                for batch in by_density(batches) if order else batches:
                    writer.write(batch)
    if str(out) != "-":
        console.note(f"{out}: {words}")


def _draw(fitted: "FittedRun", batches: "Iterable[pa.RecordBatch]", out: Path, *, is_by_class: bool) -> str:
    """Write a sheet of the images; what there is to say of it."""
    import pyarrow as pa

    from bayesnde_cli.artifacts.atomic import write_bytes
    from bayesnde_cli.report.image_sheet import sheet_file, sheet_png
    from bayesnde_cli.stages.applying.sample_sheet import sample_sheet

    rows, words = sample_sheet(fitted, pa.Table.from_batches(list(batches)), is_by_class=is_by_class)
    write_bytes(out.resolve(), sheet_png(rows) if out.suffix.lower() == ".png" else sheet_file(rows, words))
    return words


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
