"""The class whose density is highest, against the class that a row came with."""

from collections.abc import Sequence

import numpy as np

from bayesnde_cli.evaluation.figures import Figures


def accuracy_figures(
    log_density: np.ndarray, mc_se: np.ndarray, true_class: np.ndarray, names: Sequence[str]
) -> Figures:
    """Accuracy of arg max_y p(x | y). log_density and mc_se (rows, classes), true_class (rows,) positions in `names`.

    A row without a number under some class is a mistake. In the confusion matrix a row is a true class, a column the
    class that was found; table rows without a number are in no column. `n_close` counts the rows whose two best
    classes are less than two Monte-Carlo errors of the difference apart.
    """
    is_whole = np.isfinite(log_density.max(axis=1))  # NaN if one of them is
    n = len(true_class)
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (true_class[is_whole], log_density[is_whole].argmax(axis=1)), 1)
    accuracy = float(np.trace(counts) / n)
    return {
        "accuracy": accuracy,
        "accuracy_se": float(np.sqrt(accuracy * (1.0 - accuracy) / n)),
        "confusion_matrix": {
            "classes": list(names),
            "counts": counts.tolist(),
            "n": n,
            "n_without_class": int((~is_whole).sum()),
            "n_close": _n_close(log_density[is_whole], mc_se[is_whole]),
        },
    }


def _n_close(log_density: np.ndarray, mc_se: np.ndarray) -> int:
    best = np.argsort(-log_density, axis=1)[:, :2]
    value, se = (np.take_along_axis(part, best, axis=1) for part in (log_density, mc_se))
    return int(np.sum(~(value[:, 0] - value[:, 1] >= 2.0 * np.hypot(se[:, 0], se[:, 1]))))
