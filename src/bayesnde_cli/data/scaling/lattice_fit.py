"""Fitting a `LatticeMarginal`: counts, a smooth background, and how much of each."""

import numpy as np

from bayesnde_cli.data.scaling.cells import LEAST_GAIN, Counts, background_weight
from bayesnde_cli.data.scaling.column_map import Array, Noise, as_float, narrow, rounded_number, rounded_place
from bayesnde_cli.data.scaling.lattice import LatticeMarginal
from bayesnde_cli.data.scaling.mixture import Mixture, Tail
from bayesnde_cli.data.scaling.mixture_fit import fitted_mixture

# A column with more distinct values, or with fewer rows for each, gets a fitted mixture as its background. The
# others (say, the pixels of images) have their frequencies, and one Gaussian is enough for what is left.
_MANY_VALUES = 256
_FEW_ROWS_PER_VALUE = 16
_TAIL_WEIGHT = 0.1  # of the Student-t component next to that one Gaussian
_LEAST_SCALE = 0.5  # half a lattice step, for a column that is constant or nearly so
_DISCOUNTS = (0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
# A value seen more than this many times as often as the average value is a spike. Spikes that make up less than this
# share of the rows are not worth a second fit.
_SPIKE = 4.0
_SPIKE_SHARE = 0.02
# A longer table of values would not be bounded memory, and frequencies of values seen once are no evidence.
_MAX_TABLE = 16_384
_MAX_RANGE = 65_536  # counting by index is quicker than sorting, up to this range


def fit_lattice(train_values: Array, validation_values: Array, *, noise: Noise | None = None) -> LatticeMarginal:
    """The map whose background, discount and weight between counts and background suit unseen rows best.

    With a discount, a value keeps what it was seen beyond it: the spike at zero of a column of amounts stays a spike,
    while the amounts, each seen once or twice, are left to the background.
    """
    train, validation = as_float(train_values), as_float(validation_values)
    if not len(train):
        raise ValueError("expected at least 1 training row, got 0")
    values, train_counts = _counted(train)
    union, counts = _aligned(values, train_counts, validation)
    if len(values) > _MANY_VALUES or len(values) * _FEW_ROWS_PER_VALUE > len(train):
        backgrounds = [fitted_mixture(train, validation), *_without_spikes(values, train_counts, validation)]
        lengths = [(discount, int(np.sum(train_counts > discount))) for discount in _DISCOUNTS]
        discounts = [discount for discount, length in lengths if 0 < length <= _MAX_TABLE]
    else:
        backgrounds = [_single_gaussian(values, train_counts)]
        discounts = [0.0]
    best_score, best = -np.inf, (backgrounds[0], 0.0, 1.0)  # the background alone, if every table is too long
    for candidate in backgrounds:
        mass = np.exp(candidate.log_mass(union))
        for discount in discounts:
            weight, score = background_weight(counts, mass, discount=discount)
            if score > best_score + LEAST_GAIN:
                best_score, best = score, (candidate, discount, weight)
    background, discount, weight = best
    # A table without weight is no table; one value keeps the map's form.
    is_kept = train_counts > discount if weight < 1.0 else np.arange(len(values)) == np.argmax(train_counts)
    return LatticeMarginal(
        values[is_kept],
        train_counts[is_kept] - discount,
        background,
        rounded_number(weight),
        narrow(noise or Noise()),
    )


def _aligned(values: Array, train_counts: Array, validation: Array) -> tuple[Array, Counts]:
    """All values of training and validation rows, and the counts of both. Shapes (C,)."""
    validation_values, validation_counts = _counted(validation)
    union = np.union1d(values, validation_values)
    counts = Counts(np.zeros(len(union)), np.zeros(len(union)))
    counts.train[np.searchsorted(union, values)] = train_counts
    counts.validation[np.searchsorted(union, validation_values)] = validation_counts
    return union, counts


def _without_spikes(values: Array, counts: Array, validation: Array) -> list[Mixture]:
    """The mixture of a column whose spikes are cut down to a few times the mean count; none without spikes."""
    cap = max(_SPIKE, np.floor(_SPIKE * np.sum(counts) / len(values)))
    is_spike = counts > cap
    if np.sum(counts[is_spike]) < _SPIKE_SHARE * np.sum(counts):
        return []
    rows = np.repeat(values, np.minimum(counts, cap).astype(np.int64))
    return [fitted_mixture(rows, validation[~np.isin(validation, values[is_spike])])]


def _counted(rows: Array) -> tuple[Array, Array]:
    """The distinct values in increasing order, and how often each occurs. Shapes (C,)."""
    if len(rows) == 0:
        return np.empty(0), np.empty(0)
    least = float(np.min(rows))
    if float(np.max(rows)) - least < _MAX_RANGE:
        counts = np.bincount((rows - least).astype(np.int64))
        seen = np.flatnonzero(counts)
        return as_float(least + seen), counts[seen].astype(np.float64)
    values, n_each = np.unique(rows, return_counts=True)
    return values, n_each.astype(np.float64)


def _single_gaussian(values: Array, counts: Array) -> Mixture:
    n = np.sum(counts)
    mean = float(np.sum(values * counts) / n)
    sd = float(np.sqrt(np.sum((values - mean) ** 2 * counts) / n))
    scale = max(rounded_number(sd), _LEAST_SCALE)
    return Mixture(
        weights=np.array([1.0 - _TAIL_WEIGHT]),
        means=np.zeros(1),
        sds=np.ones(1),
        tail=Tail(_TAIL_WEIGHT, 0.0, 1.0),
        centre=rounded_place(mean, scale),
        scale=scale,
    )
