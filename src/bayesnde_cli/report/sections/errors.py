"""How exactly each log-density is known: Monte-Carlo error, R-hat and effective draws."""

import numpy as np

from bayesnde_cli.report.binning import bin_shares, edges_through, n_bins, robust_range, thinned, widened
from bayesnde_cli.report.blocks import grid, note, plot_box, section
from bayesnde_cli.report.colours import BAD, FIRST, MUTED, SECOND, THIRD
from bayesnde_cli.report.frame import Axis, Frame, axis, log_axis
from bayesnde_cli.report.marks import bars, legend, level_guide, points, upright_guide
from bayesnde_cli.report.markup import Markup
from bayesnde_cli.report.report_data import Limits, ReportData, ScoredRows

_MOST_POINTS = 2000
_COLOURS = {
    "reliable": FIRST,
    "error above target": SECOND,
    "modes may be missing": THIRD,
    "chains disagree": BAD,
    "estimates disagree": BAD,
    "bridge did not converge": BAD,
}


def errors(data: ReportData) -> Markup | None:
    """Error, R-hat and effective draws of rows, beside what a reliable row must meet."""
    if data.rows is None or not len(data.rows.mc_se):
        return None
    rows, limits = data.rows, data.limits
    boxes = [_error_plot(rows, limits)]
    boxes += [box for box in (_rhat_plot(rows.rhat, limits), _ess_plot(rows.ess, limits)) if box]
    text = f"Dashed: what a row must meet to be reliable, that is an error up to {limits.mc_se:g} nats, R-hat up "
    text += f"to {limits.rhat:g}, at least {limits.ess:g} effective draws; where importance sampling alone is as "
    text += f"exact, R-hat up to {limits.rhat_of_witnesses:g} and {limits.ess_of_witnesses:g} draws are enough. The "
    text += "error is that of the computation; what the model itself gets wrong is not in it."
    return section("errors", "How exactly each log-density is known", grid(*boxes), note(text))


def _error_plot(rows: ScoredRows, limits: Limits) -> Markup:
    """The Monte-Carlo error of rows against their log-density, coloured by verdict."""
    positive = rows.mc_se[np.isfinite(rows.mc_se) & (rows.mc_se > 0)]
    low, high = (min(positive.min(), limits.mc_se), max(positive.max(), limits.mc_se)) if len(positive) else (1e-3, 1.0)
    x_axis = axis(*widened(*robust_range(rows.log_density), by=0.03), "log-density, nats")
    frame = Frame(x_axis, log_axis(0.8 * float(low), 1.25 * float(high), "standard error, nats"))
    chosen = thinned(len(rows.mc_se), _MOST_POINTS)
    verdicts = rows.verdict.astype(str)
    names = [name for name in _by_number(verdicts) if name in set(verdicts[chosen].tolist())]
    marks = [level_guide(frame, limits.mc_se)]
    for name in names:
        here = chosen[verdicts[chosen] == name]
        marks.append(points(frame, rows.log_density[here], rows.mc_se[here], _COLOURS.get(name, MUTED)))
    entries = [(f"{name} ({int((verdicts == name).sum()):,})", _COLOURS.get(name, MUTED)) for name in names]
    title = "Error against log-density"
    return plot_box(title, frame.plot(title, *marks), legend(entries))


def _by_number(verdicts: np.ndarray) -> list[str]:
    """The verdicts, the most frequent first: the others are drawn on top of it."""
    names, counts = np.unique(verdicts, return_counts=True)
    return [str(name) for name in names[np.argsort(-counts, kind="stable")]]


def _rhat_plot(rhat: np.ndarray, limits: Limits) -> Markup | None:
    finite = rhat[np.isfinite(rhat)]
    if not len(finite):
        return None
    high = max(robust_range(finite)[1], limits.rhat + 0.01)
    edges = edges_through(limits.rhat, min(1.0, float(finite.min())), high, n_bins(len(finite)))
    x_axis = axis(float(edges[0]), float(edges[-1]), "R-hat, the largest of all latents")
    return _histogram("R-hat", finite, edges, (x_axis, limits.rhat))


def _ess_plot(ess: np.ndarray, limits: Limits) -> Markup | None:
    finite = ess[np.isfinite(ess) & (ess > 0)]
    if not len(finite):
        return None
    low, high = min(float(finite.min()), 0.8 * limits.ess), max(float(finite.max()), 2 * limits.ess)
    limit, least, most = np.log10([limits.ess, low, high]).tolist()
    edges = 10.0 ** edges_through(limit, least, most, n_bins(len(finite)))
    x_axis = log_axis(float(edges[0]), float(edges[-1]), "effective draws, the fewest of all latents")
    return _histogram("Effective draws", finite, edges, (x_axis, limits.ess))


def _histogram(title: str, values: np.ndarray, edges: np.ndarray, across: tuple[Axis, float]) -> Markup:
    heights = 100 * bin_shares(values, edges)
    frame = Frame(across[0], axis(0.0, 1.05 * float(heights.max()), "% of rows"))
    return plot_box(title, frame.plot(f"Histogram of {title}", bars(frame, edges, heights, FIRST),
                                      upright_guide(frame, across[1])))  # fmt: skip
