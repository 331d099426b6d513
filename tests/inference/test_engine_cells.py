"""The whole estimate for rows whose columns are values with noise: the cells' likelihood against quadrature."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import norm, truncnorm

from bayesnde_cli.inference.engine import Engine
from bayesnde_cli.inference.fitted_model import FittedModel
from bayesnde_cli.model.likelihood import ColumnCells, draw_rows, join_cells
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import DensitySettings

# Two columns of categories, one of whole numbers that was only scaled, one without cells; two latents.
CATEGORIES = ColumnCells((-100.0, -0.3, 0.9), (-0.3, 0.9, 100.0))
NUMBERS = ColumnCells(tuple(np.arange(-5.0, 5.0)), tuple(np.arange(-4.0, 6.0)), width=0.5, step=1.0)
COLUMNS = (CATEGORIES, CATEGORIES, NUMBERS, ColumnCells())
WEIGHTS = np.array([[1.0, 0.3], [-0.6, 1.0], [1.5, -0.5], [0.4, 0.4]])
SD = np.array([0.15, 0.4, 0.3, 0.5])


def _decoder(z: tf.Tensor) -> tuple:
    mean = tf.linalg.matvec(tf.constant(WEIGHTS, z.dtype), z)
    return mean, tf.broadcast_to(tf.constant(SD**2, z.dtype), tf.shape(mean)), join_cells(COLUMNS)


def _by_quadrature(x: np.ndarray, columns: tuple[ColumnCells, ...]) -> np.ndarray:
    grid = np.linspace(-5.5, 5.5, 201)
    z = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    log_prior = norm.logpdf(z).sum(axis=1) + 2 * np.log(grid[1] - grid[0])
    mean = z @ WEIGHTS.T
    known: dict[tuple[int, float], np.ndarray] = {}
    truth = np.empty(len(x))
    for index, row in enumerate(x.astype(float)):
        total = log_prior.copy()
        for column, cells in enumerate(columns):
            own = [pair for pair in zip(cells.lower, cells.upper, strict=True) if pair[0] <= row[column] < pair[1]]
            if not own:
                total += norm.logpdf(row[column], mean[:, column], SD[column])
                continue
            lower, upper = own[0]
            if (column, lower) not in known:
                edges = ((edge - mean[:, column]) / SD[column] for edge in (upper, lower))
                known[column, lower] = np.log(np.maximum(np.subtract(*map(norm.cdf, edges)), 1e-300))
            inside = -np.log(cells.width) if cells.width else truncnorm.logpdf(row[column], lower, upper)
            total += known[column, lower] + inside
        truth[index] = np.logaddexp.reduce(total)
    return truth


def _check(scores: dict[str, np.ndarray], truth: np.ndarray) -> None:
    error, se = scores["log_density_scaled"] - truth, scores["mc_se"]
    assert abs(error.mean()) < 0.01
    assert 0.91 <= np.mean(np.abs(error) < 1.96 * se) <= 0.985
    assert not np.any((np.abs(error) > 0.1) & scores["reliable"])


@pytest.mark.slow
def test_log_densities_of_rows_in_cells_are_right_and_so_are_their_errors() -> None:
    rows = Rows(draw_rows(_decoder, 128, 2, tf.constant([1, 2])).numpy(), None, None)
    engine = Engine(FittedModel(_decoder, 2), DensitySettings(escalations=0))
    scores = engine.score(rows, engine.sample(rows, 3), 3)
    _check(scores, _by_quadrature(rows.x, COLUMNS))
    assert scores["reliable"].mean() > 0.95
    # Negative control: the density of the same decoder without its cells is another one.
    with pytest.raises(AssertionError):
        _check(scores, _by_quadrature(rows.x, (ColumnCells(),) * len(COLUMNS)))
