"""Fitting a `LatticeMarginal`: counts, a smooth background, and the weight between the two."""

import numpy as np

from bayesnde_cli.data.scaling.cells import background_weight
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
_MAX_RANGE = 65_536  # counting by index is quicker than sorting, up to this range


def fit_lattice(train_values: Array, validation_values: Array, *, noise: Noise | None = None) -> LatticeMarginal:
    """The map with the training frequencies; the weight of the background is chosen on rows it has not seen."""
    train, validation = as_float(train_values), as_float(validation_values)
    if not len(train):
        raise ValueError("expected at least 1 training row, got 0")
    values, counts = _counted(train)
    if len(values) > _MANY_VALUES or len(values) * _FEW_ROWS_PER_VALUE > len(train):
        background = fitted_mixture(train, validation)
    else:
        background = _single_gaussian(values, counts)
    weight = _weight(values, counts, validation, background)
    return LatticeMarginal(values, counts, background, rounded_number(weight), narrow(noise or Noise()))


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


def _weight(values: Array, counts: Array, validation: Array, background: Mixture) -> float:
    """The weight of the background, judged on validation rows and on training rows left out one by one."""
    validation_values, validation_counts = _counted(validation)
    union = np.union1d(values, validation_values)
    train_counts, unseen_counts = np.zeros(len(union)), np.zeros(len(union))
    train_counts[np.searchsorted(union, values)] = counts
    unseen_counts[np.searchsorted(union, validation_values)] = validation_counts
    return background_weight(train_counts, unseen_counts, np.exp(background.log_mass(union)))
