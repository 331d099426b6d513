"""Whether rows are as likely, under a model, as the model's own rows: a check of the density itself.

If a model is right, log p(x) of held-out rows and of rows simulated from the model have one distribution. Held-out
rows of lower density say that the model puts its mass too narrowly, or elsewhere; of higher density, too widely.

Kolmogorov and Smirnov's test looks at the middle of the two distributions. The lower tail, where outliers are, has a
test of its own: how many of n rows are less likely than all m simulated ones. With one distribution all orders of the
n + m log-densities are equally likely, and

    P(k or more) = P(the k lowest are all rows) = prod_{i < k} (n - i) / (n + m - i),    n / (m + 1) on average.
"""

import math

import numpy as np
from scipy.stats import ks_2samp

from bayesnde_cli.evaluation.figures import Figures, figure

# A difference as large as this one turns up by chance in one of a hundred checks.
LEAST_P_VALUE = 0.01
_QUANTILES = (5, 25, 50, 75, 95)  # per cent
TYPICAL = "no difference found"
# By where the distribution function of the rows lies: clearly above that of the simulated ones, below, or both.
_LOWER = (
    "rows have lower density than the model's own rows: it is too sure of where rows lie, or they are of another kind"
)
_HIGHER = "rows have higher density than the model's own rows: it spreads its mass too widely"
_LOW = "too many rows are less likely than any of the model's own rows: it has too little mass in the tails"
_OTHER = "densities of rows are spread differently from those of the model's own rows"


def typicality_figures(log_density: np.ndarray, simulated: np.ndarray) -> Figures:
    """The two samples of log-densities, of one estimator, side by side, with both tests.

    Numbers that are not finite are left out, and counted.
    """
    kept = [values[np.isfinite(values)] for values in (log_density, simulated)]
    figures: Figures = {"rows": _summary(log_density, kept[0]), "simulated": _summary(simulated, kept[1])}
    if min(map(len, kept)) < 2:
        names = ("mean_difference", "ks", "ks_p_value", "n_below_all", "n_below_all_p_value")
        return figures | dict.fromkeys(names) | {"verdict": "too few rows to tell"}
    test = ks_2samp(*kept, method="asymp")
    n_below = int((kept[0] < kept[1].min()).sum())
    p_below = _p_below(n_below, *map(len, kept))
    return figures | {
        "mean_difference": figure(kept[0].mean() - kept[1].mean()),
        "ks": float(test.statistic),
        "ks_p_value": float(test.pvalue),
        "n_below_all": n_below,
        "n_below_all_p_value": p_below,
        "verdict": _direction(*kept) if test.pvalue < LEAST_P_VALUE else _LOW if p_below < LEAST_P_VALUE else TYPICAL,
    }


def _p_below(k: int, n: int, m: int) -> float:
    return math.prod((n - i) / (n + m - i) for i in range(k))


def _summary(values: np.ndarray, kept: np.ndarray) -> Figures:
    quantiles = np.quantile(kept, np.array(_QUANTILES) / 100) if len(kept) else [np.nan] * len(_QUANTILES)
    return {
        "n": len(kept),
        "n_not_finite": len(values) - len(kept),
        "mean": figure(kept.mean()) if len(kept) else None,
        "sd": figure(kept.std(ddof=1)) if len(kept) > 1 else None,
        "quantiles": {str(q): figure(value) for q, value in zip(_QUANTILES, quantiles, strict=True)},
    }


def _direction(rows: np.ndarray, simulated: np.ndarray) -> str:
    lower = ks_2samp(rows, simulated, alternative="greater", method="asymp").statistic
    higher = ks_2samp(rows, simulated, alternative="less", method="asymp").statistic
    if max(lower, higher) < 2.0 * min(lower, higher):
        return _OTHER
    return _LOWER if lower > higher else _HIGHER
