"""Which scaling suits a table: the one in which a plain mixture gives validation rows the higher density.

The marginal scaling knows every column's own distribution, which is most of what there is to know where columns are
skewed, lumpy or hardly depend on one another. Where all lies in how they do, as in a spiral, it bends that shape and
adds the noise of what it has estimated; a shift and a scale leave the shape as it is.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bayesnde_cli.data import splits
from bayesnde_cli.data.schema import Feature
from bayesnde_cli.evaluation.baselines.fitted import by_class, some_rows
from bayesnde_cli.evaluation.baselines.mixture import gaussian_mixture
from bayesnde_cli.evaluation.baselines.parts import Part
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.reporting import Report

USUAL, OTHER = "marginal", "standard"
# With more columns a mixture says little, and takes long.
MOST_COLUMNS = 30
_MOST_TRAINING_ROWS, _MOST_VALIDATION_ROWS = 3000, 2000
# The other scaling must be better by so many standard errors of the difference.
_LEAST_GAIN = 1.0
# Rows of each class, without which classes are not told apart.
_LEAST_TRAINING_ROWS, _LEAST_VALIDATION_ROWS = 50, 10


class SomeRows(NamedTuple):
    """Some rows of a split."""

    values: np.ndarray  # (rows, p), of all features
    row_ids: np.ndarray  # (rows,) positions in the input
    classes: np.ndarray | None  # (rows,) positions of their classes, if there is a condition


def positions(split: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the rows stand that choose: training rows to fit mixtures to, validation rows to judge them by."""
    train, validation = (np.flatnonzero(split == code) for code in (splits.TRAIN, splits.VALIDATION))
    return some_rows(train, _MOST_TRAINING_ROWS, seed), some_rows(validation, _MOST_VALIDATION_ROWS, seed)


def chosen_features(
    candidates: Mapping[str, Sequence[Feature]], train: SomeRows, validation: SomeRows, seed: int, report: Report
) -> tuple[Feature, ...]:
    """The features of one of the two scalings: that of p(x | y), if there is a condition and all classes have rows."""
    scores = {}
    has_classes = _are_enough(train.classes, _LEAST_TRAINING_ROWS) and _are_enough(
        validation.classes, _LEAST_VALIDATION_ROWS
    )
    with report.progress("choosing the scaling", len(candidates), "scalings") as advance:
        for name, features in candidates.items():
            fitted, judged = (
                Part(cells, rows.classes if has_classes else None, log_slope)
                for rows in (train, validation)
                for cells, log_slope in [_scaled(features, rows, seed)]
            )
            mixture = by_class(gaussian_mixture)(fitted, judged, derive_seed(seed, "prepare", "scale"))
            scores[name] = judged.in_file(mixture.score(judged))
            advance(1)
    gain = scores[OTHER] - scores[USUAL]
    mean, se = float(np.mean(gain)), float(np.std(gain) / np.sqrt(len(gain)))
    chosen = OTHER if mean > _LEAST_GAIN * se else USUAL
    report.note(
        f"scaling: {chosen} (a mixture of validation rows is {abs(mean):.3f} ± {2 * se:.3f} nats "
        f"{'better' if mean > 0 else 'worse'} with {OTHER} than with {USUAL}"
        f"{', which may be chance' if chosen == USUAL and mean > 0 else ''})"
    )
    return tuple(candidates[chosen])


def _are_enough(classes: np.ndarray | None, least: int) -> bool:
    """Whether every class up to the largest has so many rows."""
    return classes is not None and bool(np.bincount(classes).min() >= least)


def _scaled(features: Sequence[Feature], rows: SomeRows, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in the model's space, (rows, p), and their log-Jacobian, (rows,)."""
    pairs = zip(features, rows.values.T, strict=True)
    columns = [feature.scale(column, rows.row_ids, seed) for feature, column in pairs]
    return np.stack([u for u, _ in columns], axis=1), np.sum([log_slope for _, log_slope in columns], axis=0)
