"""`bayesnde grid`: the density of two columns on a grid."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesnde_cli.cli.applying_options import SETTINGS, ConditionOption, check_json, finish
from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import AssignmentsOption, JsonOption, QuietOption, RunOption, VerboseOption, with_settings
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.cli.table_output import FormatOption, output_format, table_output
from bayesnde_cli.config import DensityConfig
from bayesnde_cli.errors import BadUsage

if TYPE_CHECKING:
    from bayesnde_cli.stages.applying.grid import Grid

_PICTURES = (".svg", ".png")


@with_settings(DensityConfig, SETTINGS)
def grid(
    config: DensityConfig,
    first: Annotated[str, typer.Argument(metavar="COL1", help="The column of the x axis.")],
    second: Annotated[str, typer.Argument(metavar="COL2", help="The column of the y axis.")],
    points: Annotated[int, typer.Option(metavar="N", help="Points of each axis; of whole numbers, at most.")] = 100,
    range: Annotated[
        str | None,
        typer.Option(metavar="LOW,HIGH,LOW,HIGH", help="Of both axes. [default: where nearly all training rows are]"),
    ] = None,
    condition: ConditionOption = None,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="COL=VALUE", help="Given this value of another column; repeatable.", show_default=False),
    ] = None,
    draws: Annotated[int, typer.Option(metavar="N", help="Latents that the density is averaged over.")] = 2**19,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE|-", help="Where to write the table. [default: -, without --picture]"),
    ] = None,
    format: FormatOption = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|.png", help="Draw a map: SVG with axes, PNG without.")
    ] = None,
    run: RunOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    assignments: AssignmentsOption = None,
) -> None:
    """The density of two columns on a grid, all others integrated out, as a table and a picture.

    An average over latents from the prior, with its Monte-Carlo error at every point. Of whole numbers and categories
    it is the probability of each value.

    \b
    Example:
      bayesnde grid eruptions waiting --picture map.svg
      bayesnde grid a b --range 0,10,-1,1 --points 200 --out grid.parquet
      bayesnde grid a b --condition bus --at c=3 --picture map.png
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages import applying
    from bayesnde_cli.stages.applying.fitted_run import fitted_run
    from bayesnde_cli.stages.applying.grid import BLOCK_LATENTS, Question, run_grid
    from bayesnde_cli.stages.applying.grid_question import grid_axes, held_columns

    if out is None and picture is None and not json:
        out = Path("-")
    check_json(out, is_json=json)
    _check(draws, out, format, picture)
    chosen = "" if out is None else output_format(out, format)
    console = Console(quiet=quiet)
    fitted = fitted_run(RunLayout(run_directory(run)), config)
    axes = grid_axes(fitted, (first, second), points, range)
    class_index = None if condition is None else fitted.class_index(condition)
    question = Question(*axes, held_columns(fitted, at or [], axes), class_index, draws)
    prior = applying.open_prior(fitted.layout, fitted.config, BLOCK_LATENTS, is_verbose=verbose >= 2)
    found = run_grid(fitted, prior, question, console)
    if picture is not None:
        _draw(found, picture)
    if out is not None:
        table = found.table()
        with table_output(out, chosen, table.schema) as writer:
            for batch in table.to_batches():
                writer.write(batch)
    finish(console, found, out, is_json=json)


def _check(draws: int, out: Path | None, format: str | None, picture: Path | None) -> None:
    """Refuse, before the work, what cannot be."""
    if draws < 1:
        raise BadUsage("--draws must be 1 at least", found=f"--draws {draws}", hint="the default is 524288")
    if out is None and format:
        raise BadUsage("--format says how to write a table", found="no --out", hint="add --out FILE, or --out -")
    if picture is not None and picture.suffix.lower() not in _PICTURES:
        raise BadUsage(
            f"--picture {picture}: no kind of picture belongs to the ending '{picture.suffix}'",
            found=f"endings: {', '.join(_PICTURES)}",
            hint="name the file otherwise",
        )


def _draw(found: "Grid", path: Path) -> None:
    from bayesnde_cli.artifacts.atomic import write_bytes
    from bayesnde_cli.stages.applying.density_picture import png, svg

    write_bytes(path.resolve(), png(found) if path.suffix.lower() == ".png" else svg(found))
