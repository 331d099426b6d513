"""What makes a continuous density undefined or misleading and can be seen in the table; the user is warned of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bayesnde_cli.rng import bits_at

# A column is (nearly) a linear function of others when they leave less than this share of its variance.
# Recording 3 * x to five digits leaves about 1e-6; the closest honest pairs met in real tables leave 1e-3 and more.
NEARLY_LINEAR = 1e-4
# Rows that the linear check looks at: enough to see a relation, few enough to be quick.
LINEAR_CHECK_ROWS = 20_000
# Of the terms of a linear relation, those below this share of the largest are noise.
_NAMED_TERM = 0.05


@dataclass(frozen=True)
class LinearRelation:
    """A column that the columns before it determine, up to `left` of its variance."""

    column: str
    others: tuple[str, ...]
    left: float


def count_duplicates(columns: Iterable[np.ndarray], n_rows: int) -> int:
    """How many rows repeat an earlier row exactly; columns are float64 of equal length, read one at a time.

    Rows are compared by a 64-bit hash: with ten million rows the chance of a false match is 3e-6.
    """
    row_hash = np.zeros(n_rows, np.uint64)
    for position, values in enumerate(columns):
        bits = (values + 0.0).view(np.uint64)  # adding zero makes -0.0 and 0.0 one value
        with np.errstate(over="ignore"):
            row_hash = bits_at(position, row_hash ^ bits_at(0, bits))
    return n_rows - len(np.unique(row_hash))


def linear_relations(values: np.ndarray, names: Sequence[str]) -> list[LinearRelation]:
    """The columns of `values` (rows, p) that are nearly linear functions of columns before them.

    Gaussian elimination on the correlation matrix in the file's order: a row of the Cholesky factor at a time.
    """
    from scipy.linalg import solve_triangular

    n_rows, n_columns = values.shape
    values = values / np.maximum(np.max(np.abs(values), axis=0), np.finfo(float).tiny)  # squares stay finite
    centred = values - values.mean(axis=0)
    spread = np.sqrt(np.mean(centred**2, axis=0))
    centred = centred[:, spread > 0] / spread[spread > 0]
    columns = np.flatnonzero(spread > 0)
    correlation = centred.T @ centred / n_rows

    relations: list[LinearRelation] = []
    basis: list[int] = []  # positions in `columns` that are independent so far
    factor = np.zeros((min(n_columns, n_rows), min(n_columns, n_rows)))  # its Cholesky factor, grown row by row
    for position, column in enumerate(columns.tolist()):
        size = len(basis)
        if size >= n_rows // 2:  # with so few rows anything looks like a combination of the rest
            break
        row = solve_triangular(factor[:size, :size], correlation[basis, position], lower=True) if size else np.empty(0)
        left = 1.0 - float(row @ row)
        if left < NEARLY_LINEAR:
            weights = np.abs(solve_triangular(factor[:size, :size], row, lower=True, trans="T"))
            named = np.array(basis)[weights > _NAMED_TERM * weights.max()]
            others = tuple(names[columns[other]] for other in named.tolist())
            relations.append(LinearRelation(names[column], others, max(left, 0.0)))
        else:
            factor[size, :size], factor[size, size] = row, np.sqrt(left)
            basis.append(position)
    return relations
