"""The mean log-density of rows, with the two parts of its error apart."""

import math

import numpy as np

from bayesnde_cli.evaluation.figures import Figures, figure, mean_figures


def log_density_figures(log_density: np.ndarray, log_density_scaled: np.ndarray, mc_se: np.ndarray) -> Figures:
    """The mean over the rows where it is finite, all (rows,).

    `mean_log_density_se` is the error that other rows of the same source would bring, s / sqrt(n), and holds the
    Monte-Carlo error of the rows already; `mean_log_density_mc_se` is that part alone, sqrt(sum of mc_se^2) / n.
    """
    finite = np.isfinite(log_density)
    mean, se = mean_figures(log_density[finite])
    mean_scaled, se_scaled = mean_figures(log_density_scaled[finite])
    n = int(finite.sum())
    return {
        "mean_log_density": mean,
        "mean_log_density_se": se,
        "mean_log_density_mc_se": figure(math.sqrt(np.sum(mc_se[finite] ** 2)) / n) if n else None,
        "mean_log_density_scaled": mean_scaled,
        "mean_log_density_scaled_se": se_scaled,
    }


def bits_figures(mean: Figures, n_dimensions: int) -> Figures:
    """Bits per dimension, -mean / (n log 2), of the figures of a mean log-density, and the standard error over rows.

    Of bytes with noise U(0, 1) it is, in expectation, no less than the bits a dimension that the bytes themselves take
    under the same model: log P(x) = log E[p(x + noise)] >= E[log p(x + noise)] (Theis, van den Oord and Bethge 2016).
    """
    nats_of_a_bit = n_dimensions * math.log(2.0)
    value, se = mean["mean_log_density"], mean["mean_log_density_se"]
    return {
        "bits_per_dimension": None if value is None else -value / nats_of_a_bit,
        "bits_per_dimension_se": None if se is None else se / nats_of_a_bit,
    }


def gain_figures(log_density: np.ndarray, other: np.ndarray) -> Figures:
    """How much higher a log-density is than another one of the same rows, in the mean over rows where both are finite.

    The error is that of the differences row by row: what is hard for both does not count.
    """
    with np.errstate(invalid="ignore"):  # infinity less infinity
        difference = log_density - other
    gain, se = mean_figures(difference[np.isfinite(difference)])
    return {"gain": gain, "gain_se": se}
