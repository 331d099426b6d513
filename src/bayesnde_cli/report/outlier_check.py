"""Do low densities find the labelled outliers? Rare and wrong are two things, and others may see the second better."""

import math
from collections.abc import Mapping
from typing import Any

from bayesnde_cli.report.check import Cause, Check, Level
from bayesnde_cli.report.fit_checks import baseline_name
from bayesnde_cli.report.numerals import numeral
from bayesnde_cli.report.report_data import ReportData

# A difference of this many standard errors is no chance.
_CLEAR = 2.0
# The area of an order by chance.
_BY_CHANCE = 0.5


def outliers(data: ReportData) -> Check | None:
    """Against chance and the best of the other estimators, by the area under the ROC curve."""
    own = data.metrics.get("outliers") or {}
    auroc = own.get("auroc")
    if auroc is None:
        return None
    n_outliers, n_others = own["n_outliers"], own["n"] - own["n_outliers"]
    error = auroc_error(auroc, n_outliers, n_others)
    text = f"Low densities find the {n_outliers:,} labelled outliers with an AUROC of {numeral(auroc, 2)} "
    text += "(1 finds all, 0.5 is chance)."
    rivals = _aurocs(data.metrics.get("baselines") or {})
    if rivals:
        best = max(rivals, key=lambda name: rivals[name])
        both = math.hypot(error, auroc_error(rivals[best], n_outliers, n_others))
        if rivals[best] - auroc > _CLEAR * both:
            text += (
                f" The best of {len(rivals)} other estimators ({baseline_name(best)}) has {numeral(rivals[best], 2)}."
            )
            return Check("Outliers", Level.FAIR, text, Cause.OUTLIERS)
    if auroc - _BY_CHANCE <= _CLEAR * error:
        return Check("Outliers", Level.FAIR, f"{text} That may be chance.", Cause.OUTLIERS)
    return Check("Outliers", Level.GOOD, text)


def auroc_error(auroc: float, n_outliers: int, n_others: int) -> float:
    """The standard error of an area under the ROC curve A, by Hanley and McNeil (1982):

    var = [A (1 - A) + (n₁ - 1) (A / (2 - A) - A²) + (n₀ - 1) (2 A² / (1 + A) - A²)] / (n₁ n₀).
    """
    of_two_outliers, of_two_others = auroc / (2.0 - auroc), 2.0 * auroc**2 / (1.0 + auroc)
    spread = auroc * (1.0 - auroc)
    spread += (n_outliers - 1) * (of_two_outliers - auroc**2) + (n_others - 1) * (of_two_others - auroc**2)
    return math.sqrt(max(spread, 0.0) / (n_outliers * n_others))


def _aurocs(baselines: Mapping[str, Any]) -> dict[str, float]:
    found = {name: ((figures or {}).get("outliers") or {}).get("auroc") for name, figures in baselines.items()}
    return {name: auroc for name, auroc in found.items() if auroc is not None}
