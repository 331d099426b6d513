"""Maximum likelihood of a `Mixture` by EM: a fixed number of steps from quantile-based starts.

Everything that decides a parameter is sorting, `+ - * /`, `sqrt` and `portable_exp`, in a fixed order: the same
rows give the same bits on every machine. Long columns are compressed first: the rows in the tails stay single,
the body becomes bins of equal counts, each with its mean and its variance.
"""

from typing import NamedTuple

import numpy as np

from bayesnde_cli.data.scaling.cells import ROOT_TWO_PI
from bayesnde_cli.data.scaling.column_map import Array, rounded, rounded_number
from bayesnde_cli.data.scaling.exponential import portable_exp
from bayesnde_cli.data.scaling.mixture import Mixture, Tail

N_STEPS = 100
MAX_ATOMS = 1_024
_N_TAIL_ATOMS = 64  # on either side
_NORMAL_IQR = 1.349  # interquartile range of a standard normal
# The least component s.d.: a thousandth of the column's own scale, or the s.d. of a rounding error to the
# nearest step. Ties and spikes cannot collapse below it.
_LEAST_SD = 1e-3
_LARGEST_LEAST_SD = 0.5  # of the column's own scale: a few values far apart are no rounding error
_ROOT_TWELVE = 3.4641016151377544
# The tail component starts with this weight and the column's width, and stays wide: left free, it turns into one
# more mode, which costs small tables 0.03 nats a row. A larger floor would cost Cauchy columns 0.02.
_START_TAIL_WEIGHT = 0.05
_LEAST_TAIL_VARIANCE = 0.5
_EMPTY = 1e-8  # a component with less mass keeps its place


class Atoms(NamedTuple):
    """A column's training rows in standard units, compressed. `mean`, `variance`, `weight` have shape (A,)."""

    mean: Array
    variance: Array
    weight: Array  # sums to 1
    n_rows: int
    least_sd: float
    centre: float  # file = centre + scale * standard
    scale: float


def atoms_of(train: Array) -> Atoms:
    """The rows, sorted, moved to median 0 and scale 1: an atom for each value, or compressed to 1,024 atoms."""
    ordered = np.sort(train)
    n = len(ordered)
    centre = float(ordered[n // 2])
    scale = rounded_number(_robust_scale(ordered))
    ordered = np.clip((ordered - centre) / scale, -1e100, 1e100)
    first = np.flatnonzero(np.concatenate([[True], np.diff(ordered) > 0]))
    distinct = ordered[first]
    step = float(np.diff(distinct).min()) if len(distinct) > 1 else 0.0
    least_sd = max(min(step / _ROOT_TWELVE, _LARGEST_LEAST_SD), _LEAST_SD)
    if len(distinct) <= MAX_ATOMS:
        counts = np.diff(np.append(first, n)).astype(np.float64)
        return Atoms(distinct, np.zeros(len(distinct)), counts / n, n, least_sd, centre, scale)
    n_bins = MAX_ATOMS - 2 * _N_TAIL_ATOMS
    inner = _N_TAIL_ATOMS + (np.arange(n_bins + 1) * (n - 2 * _N_TAIL_ATOMS)) // n_bins
    edges = np.concatenate([np.arange(_N_TAIL_ATOMS), inner, np.arange(n - _N_TAIL_ATOMS + 1, n + 1)])
    counts = np.diff(edges).astype(np.float64)
    mean = np.add.reduceat(ordered, edges[:-1]) / counts
    deviation = ordered - np.repeat(mean, np.diff(edges))
    variance = np.add.reduceat(deviation * deviation, edges[:-1]) / counts
    return Atoms(mean, variance, counts / n, n, least_sd, centre, scale)


def fit_atoms(atoms: Atoms, n_components: int) -> Mixture:
    """The mixture after `N_STEPS` EM steps, its parameters rounded to nine digits."""
    x, spread = atoms.mean, atoms.variance
    weight, mean, variance = _start(atoms, n_components)
    weight *= 1.0 - _START_TAIL_WEIGHT
    least_variance = atoms.least_sd**2
    tail_floor = 1.0 / (atoms.n_rows + 1.0)
    tail_weight, centre, tail_variance = _START_TAIL_WEIGHT, 0.0, 1.0
    for _ in range(N_STEPS):
        deviation = x - mean[:, None]  # (K, A)
        square = deviation * deviation
        share = portable_exp(square * (-0.5 / variance)[:, None])
        share *= (weight / (np.sqrt(variance) * ROOT_TWO_PI))[:, None]
        far = (x - centre) * (x - centre) / tail_variance
        tail_share = tail_weight / (np.sqrt(tail_variance) * (2.0 + far) * np.sqrt(2.0 + far))  # (A,)
        scaled = atoms.weight / (np.add.reduce(share, axis=0) + tail_share)
        share *= scaled
        tail_share *= scaled
        mass = np.sum(share, axis=1)  # (K,)
        safe = np.maximum(mass, _EMPTY)
        shift = np.sum(share * deviation, axis=1) / safe
        mean = mean + shift
        variance = np.sum(share * (square + spread), axis=1) / safe - shift * shift
        variance = np.maximum(variance, least_variance)
        # Student's t as a scale mixture of Gaussians: rows far out count less for its centre and its scale.
        precision = tail_share * 3.0 / (2.0 + far)
        tail_mass = float(np.sum(tail_share))
        centre = float(np.sum(precision * x)) / float(np.sum(precision))
        tail_variance = float(np.sum(precision * ((x - centre) * (x - centre) + spread))) / tail_mass
        tail_variance = max(tail_variance, _LEAST_TAIL_VARIANCE)
        tail_weight = max(tail_mass, tail_floor)
        weight = safe * ((1.0 - tail_weight) / float(np.sum(safe)))
    return Mixture(
        weights=rounded(weight),
        means=rounded(mean),
        sds=rounded(np.sqrt(variance)),
        tail=Tail(*map(rounded_number, (tail_weight, centre, float(np.sqrt(tail_variance))))),
        centre=atoms.centre,
        scale=atoms.scale,
    )


def _start(atoms: Atoms, n_components: int) -> tuple[Array, Array, Array]:
    """Weights, means and variances of groups of neighbouring atoms. Shapes (K,).

    The groups end at the quantiles 3 t^2 - 2 t^3, t = k/K: small groups at both ends, where edges and skewed
    tails need their own components and EM is slow to send them.
    """
    cumulative = np.cumsum(atoms.weight) - 0.5 * atoms.weight
    t = np.arange(1, n_components) / n_components
    group = np.searchsorted(t * t * (3.0 - 2.0 * t), cumulative)
    # A heavy atom may leave groups empty: such a component starts at the next atom.
    starts = np.minimum(np.searchsorted(group, np.arange(n_components)), len(group) - 1)
    mass = np.add.reduceat(atoms.weight, starts)
    mean = np.add.reduceat(atoms.weight * atoms.mean, starts) / mass
    deviation = atoms.mean - mean[group]
    variance = np.add.reduceat(atoms.weight * (deviation * deviation + atoms.variance), starts) / mass
    return mass / np.sum(mass), mean, np.maximum(variance, atoms.least_sd**2)


def _robust_scale(ordered: Array) -> float:
    """The smaller of the s.d. and the normal-consistent interquartile range; 1 for a constant column."""
    n = len(ordered)
    quartiles = float(ordered[(3 * n) // 4] - ordered[n // 4]) / _NORMAL_IQR
    largest = float(np.max(np.abs(ordered))) or 1.0
    unit = ordered / largest  # squares of huge values stay finite
    sd = largest * float(np.sqrt(np.mean((unit - np.mean(unit)) ** 2)))
    positive = [scale for scale in (sd, quartiles) if scale > 0]
    return min(positive) if positive else 1.0
