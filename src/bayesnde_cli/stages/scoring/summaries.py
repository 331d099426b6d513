"""Figures over all rows of a data set, gathered block by block."""

import math
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class DensitySummary:
    """How many rows have which verdict, and the mean log-density of all."""

    def __init__(self) -> None:
        self._n_rows = 0
        self._n_reliable = 0
        self._verdicts: Counter[str] = Counter()
        self._sums: list[float] = []

    def add(self, table: pa.Table) -> None:
        self._n_rows += table.num_rows
        self._n_reliable += pc.sum(table["reliable"]).as_py()
        self._verdicts.update(table["verdict"].to_pylist())
        self._sums.append(math.fsum(table["log_density"].to_pylist()))

    def result(self) -> dict[str, Any]:
        mean = math.fsum(self._sums) / self._n_rows
        return {
            "n_rows": self._n_rows,
            "n_reliable": self._n_reliable,
            "mean_log_density": mean if math.isfinite(mean) else None,
            "verdicts": dict(self._verdicts.most_common()),
        }


class ChainSummary:
    """How well the chains of all rows have mixed."""

    def __init__(self) -> None:
        self._n_rows = 0
        self._divergences = 0
        self._rhat_max = 0.0
        self._ess_min = math.inf

    def add(self, table: pa.Table) -> None:
        self._n_rows += table.num_rows
        self._divergences += pc.sum(table["divergences"]).as_py()
        self._rhat_max = max(self._rhat_max, *table["rhat_max"].to_pylist())
        self._ess_min = min(self._ess_min, *table["ess_min"].to_pylist())

    def result(self) -> dict[str, Any]:
        return {
            "n_rows": self._n_rows,
            "divergences": self._divergences,
            "rhat_max": self._rhat_max if math.isfinite(self._rhat_max) else None,  # None: beyond all numbers
            "ess_min": self._ess_min,
        }
