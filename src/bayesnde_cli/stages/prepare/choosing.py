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
from bayesnde_cli.evaluation.baselines.fitted import some_rows
from bayesnde_cli.evaluation.baselines.mixture import gaussian_mixture
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.reporting import Report

USUAL, OTHER = "marginal", "standard"
# With more columns a mixture says little, and takes long.
MOST_COLUMNS = 30
_MOST_TRAINING_ROWS, _MOST_VALIDATION_ROWS = 3000, 2000
# The other scaling must be better by so many standard errors of the difference.
_LEAST_GAIN = 1.0


class SomeRows(NamedTuple):
    """Some rows of a split: values of all features (rows, p), and their positions in the input (rows,)."""

    values: np.ndarray
    row_ids: np.ndarray


def positions(split: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the rows stand that choose: training rows to fit mixtures to, validation rows to judge them by."""
    train, validation = (np.flatnonzero(split == code) for code in (splits.TRAIN, splits.VALIDATION))
    return some_rows(train, _MOST_TRAINING_ROWS, seed), some_rows(validation, _MOST_VALIDATION_ROWS, seed)


def chosen_features(
    candidates: Mapping[str, Sequence[Feature]], train: SomeRows, validation: SomeRows, seed: int, report: Report
) -> tuple[Feature, ...]:
    """The features of one of the two scalings."""
    scores = {}
    with report.progress("choosing the scaling", len(candidates), "scalings") as advance:
        for name, features in candidates.items():
            x, _ = _scaled(features, train, seed)
            judged, log_slope = _scaled(features, validation, seed)
            mixture = gaussian_mixture(x, judged, derive_seed(seed, "prepare", "scale"))
            scores[name] = mixture.score(judged) + log_slope
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


def _scaled(features: Sequence[Feature], rows: SomeRows, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in the model's space, (rows, p), and their log-Jacobian, (rows,)."""
    pairs = zip(features, rows.values.T, strict=True)
    columns = [feature.scale(column, rows.row_ids, seed) for feature, column in pairs]
    return np.stack([u for u, _ in columns], axis=1), np.sum([log_slope for _, log_slope in columns], axis=0)
