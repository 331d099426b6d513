"""How the model was trained: validation log-density and loss, with the checkpoint that was kept."""

import numpy as np

from bayesnde_cli.report.binning import robust_range, widened
from bayesnde_cli.report.blocks import note, plot_box, section, wide_grid
from bayesnde_cli.report.colours import FIRST, SECOND
from bayesnde_cli.report.frame import Frame, axis
from bayesnde_cli.report.marks import level_guide, line, points, ring, upright_guide, whiskers
from bayesnde_cli.report.markup import Markup
from bayesnde_cli.report.numerals import with_error
from bayesnde_cli.report.report_data import LossCurve, ReportData, Training


def training(data: ReportData) -> Markup | None:
    """The course of both training stages."""
    if not data.training:
        return None
    boxes = [_looks(stage, data.metrics.get("mean_log_density")) for stage in data.training]
    # A phase of two records or fewer has no course to show.
    boxes += [_loss(stage, curve) for stage in data.training for curve in stage.losses if len(curve.step) > 2]
    last = data.training[-1]
    text = f"The ring is the checkpoint that was kept: {with_error(last.chosen_log_density, last.chosen_se)} nats on "
    text += f"validation rows (selected by {last.selected_by}). Error bars are 2 standard errors over rows, which all "
    text += "looks share. The dashed line is the mean of the rows of this report."
    if any(curve.phase == "elbo" for stage in data.training for curve in stage.losses):
        text += " The loss of elbo may rise at first, while the prior gains its weight."
    return section("training", "Training", wide_grid(*boxes), note(text))


def _looks(stage: Training, mean: float | None) -> Markup:
    """The mean log-density of validation rows at every look."""
    low, high = stage.log_density - 2 * stage.se, stage.log_density + 2 * stage.se
    ends = np.concatenate([low, high, [] if mean is None else [mean]])
    frame = Frame(
        axis(*widened(float(stage.step.min()), float(stage.step.max()), by=0.04), "step"),
        axis(*widened(*robust_range(ends), by=0.03), "log-density, nats"),
    )
    marks = [
        whiskers(frame, stage.step, low, high, f"thin {FIRST}"),
        line(frame, stage.step, stage.log_density, FIRST),
        points(frame, stage.step, stage.log_density, FIRST, 6),
        ring(frame, float(stage.step[stage.chosen]), stage.chosen_log_density, SECOND),
    ]
    if mean is not None:
        marks.append(level_guide(frame, mean))
    title = f"{stage.stage}: validation rows"
    return plot_box(title, frame.plot(f"{title}, log-density by step, the kept checkpoint marked", *marks))


def _loss(stage: Training, curve: LossCurve) -> Markup:
    frame = Frame(
        axis(*widened(float(curve.step.min()), float(curve.step.max())), "step"),
        axis(*_loss_range(curve.loss), "loss, model's space"),
    )
    marks = [line(frame, curve.step, curve.loss, FIRST)]
    chosen = float(stage.step[stage.chosen])
    if curve.step[0] <= chosen <= curve.step[-1]:
        marks.append(upright_guide(frame, chosen))
    title = f"{stage.stage}: loss ({curve.phase})"
    return plot_box(title, frame.plot(f"{title} by step", *marks))


def _loss_range(loss: np.ndarray) -> tuple[float, float]:
    """Nearly all of the losses: a first one may be wild."""
    finite = loss[np.isfinite(loss)]
    if not len(finite):
        return 0.0, 1.0
    low, high = np.quantile(finite, [0.02, 0.98])
    return widened(float(low), float(high), by=0.1)
