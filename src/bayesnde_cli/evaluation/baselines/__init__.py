"""Plain estimators on the same rows: training rows fit them, validation rows choose, evaluated rows are scored.

The evaluated rows have no say in anything that is fitted or chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bayesnde_cli.evaluation.baselines.detectors import isolation_forest, one_class_svm
from bayesnde_cli.evaluation.baselines.fitted import Fit, Fitted
from bayesnde_cli.evaluation.baselines.gaussian import gaussian
from bayesnde_cli.evaluation.baselines.kernel import kernel_density
from bayesnde_cli.evaluation.baselines.mixture import gaussian_mixture
from bayesnde_cli.evaluation.figures import Figures, mean_figures
from bayesnde_cli.evaluation.outliers import outlier_figures, outlier_score
from bayesnde_cli.evaluation.scores import gain_figures
from bayesnde_cli.rng import derive_seed

DENSITIES: Mapping[str, Fit] = {
    "gaussian": gaussian,
    "gaussian_mixture": gaussian_mixture,
    "kernel_density": kernel_density,
}
DETECTORS: Mapping[str, Fit] = {"one_class_svm": one_class_svm, "isolation_forest": isolation_forest}


@dataclass(frozen=True)
class Part:
    """Rows of one kind: training, validation or evaluated ones."""

    cells: np.ndarray  # (rows, p) float64
    classes: np.ndarray | None = None  # (rows,) the position of each row's class

    def of_class(self, index: int) -> np.ndarray:
        """The cells of the rows of a class."""
        return self.cells[self.classes == index]


@dataclass(frozen=True)
class Parts:
    """All rows of a comparison, in one space, and the log-Jacobian from there to the units of the file."""

    train: Part
    validation: Part
    evaluated: Part
    log_jacobian: np.ndarray  # (evaluated rows,)
    class_names: Sequence[str] = ()

    def standardised(self) -> "Parts":
        """The same with training columns of mean 0 and s.d. 1."""
        mean, sd = self.train.cells.mean(axis=0), self.train.cells.std(axis=0)
        sd = np.where(sd > 0, sd, 1.0)

        def of(part: Part) -> Part:
            return Part((part.cells - mean) / sd, part.classes)

        log_jacobian = self.log_jacobian - np.log(sd).sum()
        return Parts(of(self.train), of(self.validation), of(self.evaluated), log_jacobian, self.class_names)


def density_figures(
    name: str, parts: Parts, log_density: np.ndarray, is_outlier: np.ndarray | None, *, seed: int
) -> Figures:
    """A density baseline on the evaluated rows, in the units of the file, beside the `log_density` of these rows.

    Means are over the `n` rows where both are finite.
    """
    standard = parts.standardised()
    score, chosen = _scores(DENSITIES[name], standard, derive_seed(seed, name))
    found = score + standard.log_jacobian
    both = np.isfinite(found) & np.isfinite(log_density)
    mean, se = mean_figures(found[both])
    return {
        "n": int(both.sum()),
        "mean_log_density": mean,
        "mean_log_density_se": se,
        "n_not_finite": int((~np.isfinite(found)).sum()),
        **gain_figures(log_density[both], found[both]),
        "chosen": chosen,
        "outliers": None if is_outlier is None else outlier_figures(outlier_score(found), is_outlier),
    }


def detector_figures(name: str, parts: Parts, is_outlier: np.ndarray, *, seed: int) -> Figures:
    """An outlier detector on the evaluated rows."""
    score, chosen = _scores(DETECTORS[name], parts.standardised(), derive_seed(seed, name))
    return {"chosen": chosen, "outliers": outlier_figures(outlier_score(score), is_outlier)}


def _scores(fit: Fit, parts: Parts, seed: int) -> tuple[np.ndarray, Figures]:
    """The score of every evaluated row, under a fit of its own class if there are classes, and what was chosen."""
    classes = parts.evaluated.classes
    if classes is None:
        fitted = fit(parts.train.cells, parts.validation.cells, seed)
        return _scored(fitted, parts.evaluated.cells), _chosen(fitted, parts.train.cells)
    score = np.empty(len(classes))
    chosen = {}
    for index in np.unique(classes).tolist():
        train = parts.train.of_class(index)
        fitted = fit(train, parts.validation.of_class(index), derive_seed(seed, index))
        score[classes == index] = _scored(fitted, parts.evaluated.of_class(index))
        chosen[parts.class_names[index]] = _chosen(fitted, train)
    return score, chosen


def _chosen(fitted: Fitted, train: np.ndarray) -> Figures:
    """What was chosen, and of how many training rows the `n_fit_rows` are."""
    return fitted.chosen | {"n_train_rows": len(train)}


def _scored(fitted: Fitted, rows: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):  # rows beyond all measure have no finite density
        return fitted.score(rows)
