"""Commands that question a fitted run: `sample`, `outliers`, `classify`, `grid`."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesnde_cli.cli.console import WIDEST_CELL, output_format, with_progress, write_rows
from bayesnde_cli.cli.options import COMMON_SETTINGS, DATA, FORMAT, OUT, Call, argument, flag, option, with_options
from bayesnde_cli.errors import BadUsage, bad_choice, one_line
from bayesnde_cli.settings.stage_settings import DensitySettings

if TYPE_CHECKING:
    import pyarrow as pa

    from bayesnde_cli.answers import FittedRun

_ANSWER_OPTIONS = ("assignments", "run", "json", "quiet", "verbose")
_PICTURES = (".png", ".svg")


@with_options("assignments", "run", "quiet", "verbose", config=(DensitySettings, COMMON_SETTINGS))
def sample(
    call: Call,
    config: DensitySettings,
    n_rows: int = argument("N", "Number of rows; with --condition all, of each class.", min=1),
    condition: str | None = option(
        "CLASS|all", "Class to draw, or all in turn. [default: classes as frequent as in training]"
    ),
    with_density: bool = flag("Add the columns log_density, mc_se and reliable.", "--with-density"),
    order: str | None = option("density", "Put rows of highest density first; this scores the rows."),
    out: Path = option(
        "FILE|-",
        "File for the rows; - is stdout, and .png or .svg draws a sheet of pictures.",
        "--out",
        "-o",
        default=Path("-"),
    ),
    format: str | None = FORMAT,
) -> None:
    """Draw new rows from the fitted model, in the units and types of the original table.

    Whole numbers stay whole numbers and categories stay words; classes are as frequent as in training. A shorter sample
    with the same seed is the beginning of a longer one.

    A run of images can draw a sheet of pictures. It shows the images with the model's noise, in one row per class with
    --condition all, and the most likely ones first with --order density.

    \b
    Example:
      bayesnde sample 1000 --out new.csv
      bayesnde sample 5 --condition bus
      bayesnde sample 200 --order density --format jsonl
      bayesnde sample 10 --condition all --order density --out sheet.png
    """
    from bayesnde_cli.answers import fitted_run
    from bayesnde_cli.answers.sample import BLOCK_ROWS, Sampler, check_sheet, sort_by_density
    from bayesnde_cli.stages import loading

    if order not in (None, "density"):
        raise bad_choice("--order", order, ("density",))
    is_sheet = format is None and out.suffix.lower() in _PICTURES and not out.is_dir()
    chosen = "" if is_sheet else output_format(out, format, pictures=_PICTURES)
    fitted = fitted_run(call.layout, config)
    classes = fitted.class_positions(condition)
    n_rows *= max(len(classes), 1)
    if is_sheet:
        check_sheet(fitted, n_rows, str(out))
    prior = loading.open_prior(fitted.layout, fitted.config, BLOCK_ROWS, is_verbose=call.is_verbose)
    engine = call.open_engine(fitted.layout, fitted.config).engine if with_density or order else None
    sampler = Sampler(fitted, prior, classes, engine)
    with call.console.progress("sampling", n_rows, "rows") as advance:
        batches: Iterable[pa.RecordBatch] = with_progress(sampler.batches(n_rows), advance)
        if order:
            batches = sort_by_density(batches)
        if is_sheet:
            words = _draw_sheet(fitted, batches, out, is_by_class=len(classes) > 1)
        else:
            words = f"{n_rows:,} rows, {len(sampler.columns)} columns"
            write_rows(out, chosen, sampler.columns, batches)
    if str(out) != "-":
        call.console.note(f"{out}: {words}")


def _draw_sheet(fitted: "FittedRun", batches: "Iterable[pa.RecordBatch]", out: Path, *, is_by_class: bool) -> str:
    """Write a sheet of the images; returns its description."""
    import pyarrow as pa

    from bayesnde_cli.answers.sample import sample_sheet
    from bayesnde_cli.report.sheets import sheet_png, sheet_svg
    from bayesnde_cli.runs.files import write_bytes

    rows, words = sample_sheet(fitted, pa.Table.from_batches(list(batches)), is_by_class=is_by_class)
    is_png = out.suffix.lower() == ".png"
    write_bytes(out.resolve(), sheet_png(rows) if is_png else sheet_svg(rows, words, is_file=True).encode())
    return words


@with_options(*_ANSWER_OPTIONS, config=(DensitySettings, ("device", "threads")))
def outliers(
    call: Call,
    config: DensitySettings,
    data: list[Path] | None = DATA,
    top: int | None = option("N", "Number of rows to list. [default: 10]", min=1),
    quantile: float | None = option("SHARE", "Share of the rows to list, for instance 0.01."),
    observed: int | None = option("N", "Rank the rows that have N observed cells. [default: all cells]", min=1),
    out: Path | None = option("FILE|-", "File for the rows; - is stdout.", "--out", "-o"),
    format: str | None = FORMAT,
) -> None:
    """List the rows of lowest density, with rank, error, verdict and all their columns.

    Rows that have no density yet are scored first, as `density` does. Rows with missing cells are ranked separately,
    because densities of different cells cannot be compared.

    \b
    Example:
      bayesnde outliers
      bayesnde outliers new.csv --top 50 --out strange.csv
      bayesnde outliers --quantile 0.01 --json
    """
    from bayesnde_cli.answers.outliers import Wanted, run_outliers

    if top is not None and quantile is not None:
        raise BadUsage("--top and --quantile both say how many rows", found="both", hint="leave one of them out")
    if quantile is not None and not 0 < quantile <= 1:
        raise BadUsage("--quantile is a share", found=f"--quantile {quantile:g}", hint="give one above 0 and up to 1")
    chosen = output_format(out, format, is_json=call.json)
    wanted = Wanted(10 if top is None else top, quantile, observed)
    found = run_outliers(call.layout, call.asked(data), config, call.console, wanted, factory=call.open_engine)
    if out is not None:
        write_rows(out, chosen, found.table.schema, found.table.to_batches())
    elif not call.json:
        _show_rows(call, found.table)
    call.finish(found, out)


def _show_rows(call: Call, table: "pa.Table") -> None:
    """Print the rows; a terminal gets as many columns as fit, and the others are counted."""
    columns = [
        [
            one_line(name, WIDEST_CELL),
            *(one_line(_format_cell(name, cell), WIDEST_CELL) for cell in table.column(name).to_pylist()),
        ]
        for name in table.column_names
    ]
    n_shown = len(columns)
    if call.console.out.isatty():
        width, n_shown = shutil.get_terminal_size().columns, 0
        for column in columns:
            width -= 3 + max(map(len, column))
            n_shown += width >= 0
        n_shown = max(n_shown, 1)
    header, *rows = zip(*columns[:n_shown], strict=True)
    call.console.result_table(header, rows)
    if n_shown < len(columns):
        call.console.note(f"not shown: {len(columns) - n_shown} more columns; --out - has them all")


def _format_cell(name: str, cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.4f}" if name in ("log_density", "mc_se") else f"{cell:.6g}"
    return "" if cell is None else str(cell)


@with_options(*_ANSWER_OPTIONS, config=(DensitySettings, COMMON_SETTINGS))
def classify(
    call: Call,
    config: DensitySettings,
    data: list[Path] | None = DATA,
    prior: str = option(
        "PRIOR", "Prior of the classes: training (their frequencies), uniform, or NAME=VALUE,…", default="training"
    ),
    effort: str = option(
        "quick|usual|thorough",
        "How much to compute: quick trusts the quick estimate; usual scores the classes that it leaves open; "
        "thorough scores every class.",
        default="usual",
    ),
    out: Path = OUT,
    format: str | None = FORMAT,
) -> None:
    """Compute the probability of every class for every row, p(y | x), from densities p(x | y).

    The run needs a condition. A quick estimate drops classes that cannot win; if several remain, the row is scored
    under each of them, as `density` does. Rows need no class column, and may have missing cells.

    \b
    Example:
      bayesnde classify --out classes.csv
      bayesnde classify new.csv --prior uniform | head
      bayesnde classify new.csv --prior bus=0.7,opel=0.1,saab=0.1,van=0.1 --out classes.parquet
    """
    from bayesnde_cli.answers import fitted_run
    from bayesnde_cli.answers.classify import Classified, Classifier, class_prior, rows_to_classify
    from bayesnde_cli.stages.loading import Effort
    from bayesnde_cli.stages.scoring_job import make_job

    chosen = output_format(out, format, is_json=call.json)
    if effort not in list(Effort):
        raise bad_choice("--effort", effort, list(Effort))
    fitted = fitted_run(call.layout, config)
    weights = class_prior(fitted, prior)
    job = make_job(fitted.layout, call.asked(data), fitted.config)
    with rows_to_classify(job, fitted.schema, call.console) as rows:
        opened = call.open_engine(fitted.layout, fitted.config)
        classifier = Classifier(fitted, opened, weights, Effort(effort))
        counts = Classified(job.set_name, fitted.classes, classifier.truth_column(rows))

        def count(batch: "pa.RecordBatch") -> "pa.RecordBatch":
            counts.add(batch)
            return batch

        with call.console.progress("classifying", rows.n_rows, "rows") as advance:
            batches = with_progress(map(count, classifier.batches(rows)), advance)
            write_rows(out, chosen, classifier.columns(rows), batches)
    call.finish(counts, out)


@with_options(*_ANSWER_OPTIONS, config=(DensitySettings, COMMON_SETTINGS))
def grid(
    call: Call,
    config: DensitySettings,
    first: str = argument("COL1", "Column on the x axis."),
    second: str = argument("COL2", "Column on the y axis."),
    points: int = option("N", "Grid points per axis; for whole numbers, the largest number of values.", default=100),
    range: str | None = option("LOW,HIGH,LOW,HIGH", "Ranges of both axes. [default: nearly all training rows]"),
    condition: str | None = option(
        "CLASS", "Condition on this class. [default: all classes, as frequent as in training]"
    ),
    at: list[str] | None = option("COL=VALUE", "Condition on this value of another column; repeatable."),
    draws: int = option("N", "Latents to average over.", default=2**19, min=1),
    out: Path | None = option(
        "FILE|-", "File for the table; - is stdout. [default: -, unless --picture is given]", "--out", "-o"
    ),
    format: str | None = FORMAT,
    picture: Path | None = option("FILE.svg|.png", "Also draw a map: SVG with axes, PNG without."),
) -> None:
    """Compute the joint density of two columns on a grid, as a table and a picture.

    All other columns are integrated out: the density is an average over latents from the prior, with a Monte-Carlo
    error at every point. For whole numbers and categories it is the probability of each value.

    \b
    Example:
      bayesnde grid eruptions waiting --picture map.svg
      bayesnde grid a b --range 0,10,-1,1 --points 200 --out grid.parquet
      bayesnde grid a b --condition bus --at c=3 --picture map.png
    """
    from bayesnde_cli.answers import fitted_run
    from bayesnde_cli.answers.grid import BLOCK_LATENTS, Question, grid_axes, held_columns, run_grid
    from bayesnde_cli.runs.files import write_bytes
    from bayesnde_cli.stages import loading

    if out is None and picture is None and not call.json:
        out = Path("-")
    chosen = output_format(out, format, is_json=call.json)
    if picture is not None and picture.suffix.lower() not in _PICTURES:
        what = f"--picture {picture}: the ending '{picture.suffix}' is not that of a picture"
        raise BadUsage(what, found=f"endings: {', '.join(_PICTURES)}", hint="use another ending")
    fitted = fitted_run(call.layout, config)
    axes = grid_axes(fitted, (first, second), points, range)
    class_index = None if condition is None else fitted.class_index(condition)
    question = Question(*axes, held_columns(fitted, at or [], axes), class_index, draws)
    prior = loading.open_prior(fitted.layout, fitted.config, BLOCK_LATENTS, is_verbose=call.is_verbose)
    found = run_grid(fitted, prior, question, call.console)
    if picture is not None:
        write_bytes(picture.resolve(), found.picture(is_png=picture.suffix.lower() == ".png"))
    if out is not None:
        table = found.table()
        write_rows(out, chosen, table.schema, table.to_batches())
    call.finish(found, out)
