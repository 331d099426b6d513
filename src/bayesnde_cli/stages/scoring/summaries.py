"""Figures over all rows of a data set, gathered block by block."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class DensitySummary:
    """How many rows have which verdict, and the mean log-density of whole rows where it is finite.

    A row with missing cells has the density of the others, which is another quantity and enters no mean.
    """

    def __init__(self, n_features: int) -> None:
        self._n_features = n_features
        self._n_rows = 0
        self._n_reliable = 0
        self._n_finite = 0
        self._n_incomplete = 0
        self._n_in_mean = 0
        self._verdicts: Counter[str] = Counter()
        self._sums: list[float] = []  # of each block, for one rounding of the whole

    def add(self, table: pa.Table) -> None:
        is_whole = table["n_observed"].to_numpy() == self._n_features
        in_mean = _finite(table.filter(is_whole), "log_density")
        self._n_rows += table.num_rows
        self._n_reliable += pc.sum(table["reliable"]).as_py()
        self._n_finite += len(_finite(table, "log_density"))
        self._n_incomplete += int((~is_whole).sum())
        self._n_in_mean += len(in_mean)
        self._verdicts.update(table["verdict"].to_pylist())
        self._sums.append(math.fsum(in_mean))

    def result(self) -> dict[str, Any]:
        return {
            "n_rows": self._n_rows,
            "n_reliable": self._n_reliable,
            "mean_log_density": math.fsum(self._sums) / self._n_in_mean if self._n_in_mean else None,
            "n_not_finite": self._n_rows - self._n_finite,
            "n_incomplete": self._n_incomplete,
            "verdicts": dict(self._verdicts.most_common()),
        }


class ChainSummary:
    """How well the chains of all rows have mixed; R-hat of rows where it is finite."""

    def __init__(self) -> None:
        self._n_rows = 0
        self._n_finite = 0
        self._divergences = 0
        self._rhat_max = 0.0
        self._ess_min = math.inf

    def add(self, table: pa.Table) -> None:
        rhat = _finite(table, "rhat_max")
        self._n_rows += table.num_rows
        self._n_finite += len(rhat)
        self._divergences += pc.sum(table["divergences"]).as_py()
        self._rhat_max = max([self._rhat_max, *rhat.tolist()])
        self._ess_min = min([self._ess_min, *table["ess_min"].to_pylist()])

    def result(self) -> dict[str, Any]:
        return {
            "n_rows": self._n_rows,
            "divergences": self._divergences,
            "rhat_max": self._rhat_max if self._n_finite else None,
            "n_not_finite": self._n_rows - self._n_finite,
            "ess_min": self._ess_min,
        }


def _finite(table: pa.Table, column: str) -> np.ndarray:
    values = table[column].to_numpy()
    return values[np.isfinite(values)]
