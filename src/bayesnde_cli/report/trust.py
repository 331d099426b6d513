"""Can these densities be trusted? The answer in plain words, from checks that each say what they looked at.

Two things must hold: each number is computed right (that of the model, up to its error), and the model fits the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bayesnde_cli.report.check import Cause, Check, Level
from bayesnde_cli.report.fit_checks import baselines, blur, by_heart, held_out, truth, typicality
from bayesnde_cli.report.numerals import share
from bayesnde_cli.report.outlier_check import outliers
from bayesnde_cli.report.report_data import ReportData
from bayesnde_cli.report.table_checks import linear, size, spikes

# Of all rows, so many may be in doubt before care is due, and before the whole is.
_FEW_ROWS, _MANY_ROWS = 0.02, 0.10
# Verdicts on rows with which nothing is wrong, and on those that are only less exact than wanted.
_SOUND = ("reliable", "no cells")
_WIDE = "error above target"


@dataclass(frozen=True)
class Trust:
    """The answer, and the checks that it rests on."""

    checks: tuple[Check, ...]

    @property
    def level(self) -> Level:
        return max((check.level for check in self.checks), default=Level.FAIR)

    @property
    def causes(self) -> Cause:
        found = Cause.NONE
        for check in self.checks:
            found |= check.cause if check.level is not Level.GOOD else Cause.NONE
        return found


def judge(data: ReportData) -> Trust:
    """The answer for a scored data set."""
    fit = _found(data, truth, baselines, typicality)
    if not fit:
        text = "Nothing says yet whether the model fits these rows."
        fit = [Check("Fit", Level.FAIR, text, Cause.UNKNOWN)]
    others = _found(data, blur, held_out, by_heart, outliers, size, spikes, linear)
    return Trust((*_found(data, reliable_rows), *fit, *others))


def _found(data: ReportData, *looks: Callable[[ReportData], Check | None]) -> list[Check]:
    return [check for check in (look(data) for look in looks) if check]


def reliable_rows(data: ReportData) -> Check | None:
    """Whether the log-densities are computed right, by the verdicts on rows."""
    rows = data.metrics.get("rows") or {}
    verdicts = dict(rows.get("verdicts") or {})
    if not verdicts and data.rows is not None:
        names, counts = np.unique(data.rows.verdict.astype(str), return_counts=True)
        verdicts = dict(zip(names.tolist(), counts.tolist(), strict=True))
    n = sum(verdicts.values())
    if not n:
        return None
    n_reliable = sum(verdicts.pop(name, 0) for name in _SOUND)
    n_very_wide = rows.get("n_above_1_nat", 0)
    n_wide = verdicts.get(_WIDE, 0) - n_very_wide
    n_doubtful = n - n_reliable - n_wide
    text = f"{n_reliable:,} of {n:,} rows ({share(n_reliable, n)}) are reliable: checked, and known to "
    text += f"{data.limits.mc_se:g} nats or better."
    if n > n_reliable:
        text += f" The others: {', '.join(f'{count:,} {name}' for name, count in verdicts.items() if count)}."
    if n_very_wide:
        text += f" Errors above 1 nat, which say little: {n_very_wide:,}."
    level = Level.POOR if n_doubtful > _MANY_ROWS * n else Level.FAIR
    if n - n_reliable <= _FEW_ROWS * n:
        level = Level.GOOD
    cause = Cause.ESTIMATES if n_doubtful > min(n_wide, _FEW_ROWS * n) else Cause.PRECISION
    if n_wide > _MANY_ROWS * n:
        cause |= Cause.PRECISION
    return Check("Each number", level, text, cause)
