"""The class whose density is highest, against the class that a row came with."""

from collections.abc import Sequence

import numpy as np

from bayesnde_cli.evaluation.figures import Figures


def accuracy_figures(
    log_density: np.ndarray, mc_se: np.ndarray, true_class: np.ndarray, names: Sequence[str]
) -> Figures:
    """Accuracy of arg max_y p(x | y). log_density and mc_se (rows, classes), true_class (rows,) positions in `names`.

    A row without a number under some class is a mistake, and so is one without a likeliest class, because two are
    equally likely, as for a row without any cell. In the confusion matrix a row is a true class, a column the class
    that was found; such table rows are in no column. `n_close` counts the rows whose two best classes are less than
    two Monte-Carlo errors of the difference apart.
    """
    highest = log_density.max(axis=1, keepdims=True)  # NaN if one of them is
    has_class = np.isfinite(highest[:, 0]) & ((log_density == highest).sum(axis=1) == 1)
    n = len(true_class)
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (true_class[has_class], log_density[has_class].argmax(axis=1)), 1)
    accuracy = float(np.trace(counts) / n)
    return {
        "accuracy": accuracy,
        "accuracy_se": _share_se(accuracy, n),
        "confusion_matrix": {
            "classes": list(names),
            "counts": counts.tolist(),
            "n": n,
            "n_without_class": int((~has_class).sum()),
            "n_close": _n_close(log_density[has_class], mc_se[has_class]),
        },
    }


def _share_se(share: float, n: int) -> float:
    """Half of half the width of Wilson's interval of two standard errors: not 0 where the share is 0 or 1."""
    return float(np.sqrt(share * (1.0 - share) / n + 1.0 / n**2) / (1.0 + 4.0 / n))


def _n_close(log_density: np.ndarray, mc_se: np.ndarray) -> int:
    best = np.argsort(-log_density, axis=1)[:, :2]
    value, se = (np.take_along_axis(part, best, axis=1) for part in (log_density, mc_se))
    return int(np.sum(~(value[:, 0] - value[:, 1] >= 2.0 * np.hypot(se[:, 0], se[:, 1]))))
