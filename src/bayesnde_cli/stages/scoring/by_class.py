"""log p(x | y) of rows for every class y, and not only for the class that a row came with."""

import numpy as np

from bayesnde_cli.inference.block import Rows
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.reporting import Advance
from bayesnde_cli.stages.scoring.engine import Engine

# What a row without any cell has under every class: the integral of the prior, exactly 1.
_OF_NO_CELLS = {"log_density_scaled": 0.0, "mc_se": 0.0, "reliable": True}


def log_densities_by_class(
    engine: Engine, rows: Rows, n_classes: int, seed: int,
    *, n_real: int | None = None, advance: Advance = lambda done: None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """`log_density_scaled`, `mc_se` and `reliable` of the rows of a block under each class, (rows, classes).

    The classes that the rows came with, if they did, play no part. The log-Jacobian is the same under every class: it
    is added for units of the file, and left out where classes are compared. Rows after the first `n_real` fill the
    block up. `advance` is called after each class.
    """
    n_rows = len(rows.x)
    found: dict[str, list[np.ndarray]] = {name: [] for name in _OF_NO_CELLS}
    for index in range(n_classes):
        y = np.zeros((n_rows, n_classes), np.float32)
        y[:, index] = 1.0
        given, address = rows._replace(y=y), derive_seed(seed, "class", index)
        figures = engine.score(given, engine.sample(given, address), address, n_real=n_real)
        for name, columns in found.items():
            columns.append(figures[name])
        advance(1)
    figures = {name: np.stack(columns, axis=1) for name, columns in found.items()}
    if rows.observed is not None:
        for name, value in _OF_NO_CELLS.items():
            figures[name][~rows.observed.any(axis=1)] = value
    return figures
