"""Outlier detectors that have no density, with scikit-learn's own settings: there is no label to choose others by."""

import numpy as np

from bayesnde_cli.evaluation.baselines.fitted import Fitted, some_rows
from bayesnde_cli.rng import derive_seed

# Time and memory of the support vectors grow with the square of the rows.
MOST_SVM_ROWS = 5_000


def one_class_svm(train: np.ndarray, validation: np.ndarray, seed: int) -> Fitted:
    """A one-class support vector machine (Schölkopf et al. 2001)."""
    from sklearn.svm import OneClassSVM

    rows = some_rows(train, MOST_SVM_ROWS, seed)
    machine = OneClassSVM().fit(rows)
    return Fitted(machine.decision_function, {"nu": machine.nu, "n_fit_rows": len(rows)})


def distance(train: np.ndarray, validation: np.ndarray, seed: int) -> Fitted:
    """The distance from the mean of the training rows, in standardised columns: what any detector has to beat."""
    mean = train.mean(axis=0)
    return Fitted(lambda rows: -np.sum((rows - mean) ** 2, axis=1), {"n_fit_rows": len(train)})


def isolation_forest(train: np.ndarray, validation: np.ndarray, seed: int) -> Fitted:
    """An isolation forest (Liu, Ting and Zhou 2008)."""
    from sklearn.ensemble import IsolationForest

    forest = IsolationForest(random_state=derive_seed(seed, "forest") % 2**32).fit(train)
    return Fitted(forest.decision_function, {"trees": len(forest.estimators_), "n_fit_rows": len(train)})
