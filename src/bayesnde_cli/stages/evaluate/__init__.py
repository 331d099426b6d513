"""`evaluate`: how good the densities of a data set are, in one document."""

from bayesnde_cli.artifacts import atomic
from bayesnde_cli.artifacts.canonical import read_object
from bayesnde_cli.artifacts.layout import RunLayout, repair_hint
from bayesnde_cli.config import EvaluateConfig
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.evaluation.baselines.neural import require_packages
from bayesnde_cli.stages.evaluate.job import is_up_to_date, make_evaluate_job
from bayesnde_cli.stages.evaluate.metrics import METRICS_VERSION, make_metrics
from bayesnde_cli.stages.evaluate.model import Model, ModelFactory, open_model
from bayesnde_cli.stages.evaluate.outcome import Evaluated
from bayesnde_cli.stages.outputs import tidy, workplace
from bayesnde_cli.stages.report import report_bytes
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.scoring import Asked, open_engine
from bayesnde_cli.stages.scoring.engine import EngineFactory
from bayesnde_cli.stages.scoring.rows import open_rows

__all__ = ["Evaluated", "Model", "open_model", "run_evaluate"]

# What the manifest repeats.
_HEADLINE = ("mean_log_density", "mean_log_density_se", "mean_log_density_mc_se", "rows")


def run_evaluate(
    layout: RunLayout, asked: Asked, config: EvaluateConfig, report: Report,
    *, models: ModelFactory = open_model, factory: EngineFactory = open_engine,
) -> Evaluated:  # fmt: skip
    """Evaluate the densities of a data set, which `density` has made."""
    job = make_evaluate_job(layout, asked, config)
    if not asked.is_restart and is_up_to_date(job):
        tidy(layout, "evaluate", job.set_name)
        return read_evaluated(layout, job.set_name, is_up_to_date=True)
    require_packages(job.config.baseline)
    with workplace(layout, "evaluate", job.set_name) as place:
        open_rows(job.scoring, report)  # the report shows some; they are read again if they are gone
        model = models(layout, job.config)
        metrics = make_metrics(job, model, factory, report)
        name, page = layout.metrics_file(job.set_name).name, layout.report_file(job.set_name).name
        atomic.write_json(place.folder / name, metrics)
        atomic.write_bytes(place.folder / page, report_bytes(layout, job.set_name, metrics, model))
        place.finish(
            [name, page], job.config, seed=job.seed, identity=job.identity, inputs=job.inputs,
            run_id=job.scoring.run_id, device=model.device, result={key: metrics[key] for key in _HEADLINE},
        )  # fmt: skip
    return read_evaluated(layout, job.set_name, is_up_to_date=False)


def read_evaluated(layout: RunLayout, set_name: str, *, is_up_to_date: bool) -> Evaluated:
    """What `evaluate` has left of a data set."""
    path, page = layout.metrics_file(set_name), layout.report_file(set_name)
    found = Evaluated(str(path), str(page), is_up_to_date, read_object(path, newest=METRICS_VERSION))
    try:
        str(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # what cannot be told is none of ours
        raise BadArtifact(f"{path} is damaged", found=f"{error!r}", hint=repair_hint(path)) from error
    return found
