"""`bayesnde classify`: the probability of every class for every row."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesnde_cli.cli.applying_options import SETTINGS, check_json, finish
from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import AssignmentsOption, JsonOption, QuietOption, RunOption, VerboseOption, with_settings
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.cli.scoring_options import DataArgument, asked_for
from bayesnde_cli.cli.table_output import FormatOption, OutOption, output_format, table_output
from bayesnde_cli.config import DensityConfig, nearest_hint
from bayesnde_cli.errors import BadUsage

if TYPE_CHECKING:
    from bayesnde_cli.stages.scoring.by_class import Effort


@with_settings(DensityConfig, SETTINGS)
def classify(
    config: DensityConfig,
    data: DataArgument = None,
    prior: Annotated[
        str,
        typer.Option(metavar="PRIOR", help="Of the classes: training (frequencies), uniform, or NAME=VALUE,…"),
    ] = "training",
    effort: Annotated[
        str,
        typer.Option(
            metavar="quick|usual|thorough",
            help="quick: a first look decides; usual: if it leaves several classes, these are scored as by `density`; "
            "thorough: every class is, without a first look.",
        ),
    ] = "usual",
    out: OutOption = Path("-"),
    format: FormatOption = None,
    run: RunOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    assignments: AssignmentsOption = None,
) -> None:
    """The probability of every class for every row, p(y | x), from densities p(x | y).

    For runs with a condition. A first look drops the classes that cannot win; if several are left, the row is scored
    under these, as by `density`. The rows need not come with a class, and may have missing cells.

    \b
    Example:
      bayesnde classify --out classes.csv
      bayesnde classify new.csv --prior uniform | head
      bayesnde classify new.csv --prior bus=0.7,opel=0.1,saab=0.1,van=0.1 --out classes.parquet
    """
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages import scoring
    from bayesnde_cli.stages.applying.class_prior import class_prior
    from bayesnde_cli.stages.applying.classify import ClassCounts, Classifier, require_classes, rows_to_classify
    from bayesnde_cli.stages.applying.fitted_run import fitted_run
    from bayesnde_cli.stages.scoring.job import make_job

    check_json(out, is_json=json)
    chosen = output_format(out, format)
    chosen_effort = _effort(effort)
    console = Console(quiet=quiet)
    fitted = fitted_run(RunLayout(run_directory(run)), config)
    require_classes(fitted)
    weights = class_prior(fitted, prior)
    job = make_job(fitted.layout, asked_for(data, None, is_restart=False), fitted.config)
    with rows_to_classify(job, fitted.schema, console) as rows:
        opened = scoring.open_engine(fitted.layout, fitted.config, is_verbose=verbose >= 2)
        classifier = Classifier(fitted, opened, weights, chosen_effort)
        columns = classifier.columns(rows)
        counts = ClassCounts(fitted.classes, classifier.truth_column(rows))
        with (
            console.progress("classifying", rows.n_rows, "rows") as advance,
            table_output(out, chosen, columns) as writer,
        ):
            for batch in classifier.batches(rows):
                writer.write(batch)
                counts.add(batch)
                advance(batch.num_rows)
    finish(console, counts.result(job.set_name), out, is_json=json)


def _effort(text: str) -> "Effort":
    from bayesnde_cli.stages.scoring.by_class import Effort

    if text not in list(Effort):
        raise BadUsage(
            f"--effort cannot be '{text}'",
            found=f"efforts: {', '.join(Effort)}",
            hint=nearest_hint(text, list(Effort), "use one of these"),
        )
    return Effort(text)
