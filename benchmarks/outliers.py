"""How much precision at k depends on which rows happen to be tested.

    python benchmarks/outliers.py DATA [--splits 100] [--blur 0.3 0.4 0.5] [--trim 0.05] [--scale minmax]

DATA is the folder of the raw files (DATA/odds/shuttle.mat, cardio.mat, pendigits.mat). The rows that `reproduce` tests
are left out; of the others a tenth, drawn at random, is tested and the rest fits, many times. Prints the mean precision
at k of each detector over these splits, and their standard deviation: what another tenth would have made of it. With
--blur it is that of kernels of these widths alone, in shares of the distance of two rows as in `density --blur`; with
--trim they are fitted once more, without the share of the rows that were least likely the first time, so that outliers
that lie together are not learnt.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from scipy.io import loadmat

from bayesnde_cli.competitors import DETECTORS, MORE_DETECTORS
from bayesnde_cli.competitors.plain import Fit, Fitted, blurred_kernels
from bayesnde_cli.rows import Rows
from bayesnde_cli.stages.measures import outlier_score, precision_at_k
from bayesnde_cli.tables.splits import TEST, split_by_tail

TABLES = ("shuttle", "cardio", "pendigits")
ALL: Mapping[str, Fit] = {**MORE_DETECTORS, **DETECTORS}
# Of the preset `paper-odds`.
SHARES, SEED = (0.81, 0.09, 0.10), 0


def untested(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Cells and labels of the rows that `reproduce` does not test."""
    table = loadmat(path)
    x, is_outlier = table["X"].astype(float), table["y"].ravel() > 0
    chosen = split_by_tail(len(x), SHARES, SEED) != TEST
    return x[chosen], is_outlier[chosen]


def standardised(x: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and variance 1 on the rows that fit."""
    sd = x[fitted].std(axis=0)
    return (x - x[fitted].mean(axis=0)) / np.where(sd > 0.0, sd, 1.0)


def between_ends(x: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Columns between their ends, as wide as a uniform one of variance 1."""
    low, high = x[fitted].min(axis=0), x[fitted].max(axis=0)
    return math.sqrt(12.0) * (x - low) / np.where(high > low, high - low, 1.0)


SCALES = {"standard": standardised, "minmax": between_ends}


def trimmed_kernels(train: Rows, validation: Rows, seed: int, *, blur: float, trim: float) -> Fitted:
    """Kernels on the training rows but for a share of them, those least likely under kernels of the preset's width."""
    first = blurred_kernels(train, validation, seed).score(train)
    return blurred_kernels(train.take(first >= np.quantile(first, trim)), validation, seed, blur=blur)


def precisions(
    x: np.ndarray, is_outlier: np.ndarray, n_splits: int, detectors: Mapping[str, Fit] = ALL, scale: str = "standard"
) -> dict[str, list[float]]:
    """Precision at k of every detector on random tenths, k the outliers in the tenth."""
    found: dict[str, list[float]] = {name: [] for name in detectors}
    rng = np.random.default_rng(1)
    for split in range(n_splits):
        order = rng.permutation(len(x))
        tested, fitted = np.split(order, [len(x) // 10])
        k = int(is_outlier[tested].sum())
        if not k:
            continue
        scaled = SCALES[scale](x, fitted)
        train = Rows(scaled[fitted])
        for name, fit in detectors.items():
            score = outlier_score(fit(train, train.take(slice(1)), split).score(Rows(scaled[tested])))
            found[name].append(precision_at_k(score, is_outlier[tested], k))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each table and detector."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--blur", nargs="+", type=float, metavar="SHARE", help="widths of kernels")
    parser.add_argument("--trim", type=float, default=0.0, metavar="SHARE", help="with --blur: rows that are left out")
    parser.add_argument("--scale", choices=SCALES, default="standard")
    options = parser.parse_args(argv)
    detectors = {
        f"kernels, {blur:g}": partial(trimmed_kernels, blur=blur, trim=options.trim) for blur in options.blur or ()
    } or ALL
    for table in options.only:
        x, is_outlier = untested(options.data / "odds" / f"{table}.mat")
        for name, found in precisions(x, is_outlier, options.splits, detectors, options.scale).items():
            print(f"{table:<12}{name:<20}{np.mean(found):.3f}, s.d. {np.std(found, ddof=1):.3f}", flush=True)


if __name__ == "__main__":
    main()
