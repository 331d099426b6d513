"""The first model: every column's own distribution, and no dependence."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import ndtri
from scipy.stats import norm

from bayesnde_cli.model.decoder import decoder_spec
from bayesnde_cli.model.encoder import encoder_spec
from bayesnde_cli.training import autoencoder_state, column_loop
from bayesnde_cli.training.autoencoder_state import AutoencoderState
from bayesnde_cli.training.column_loop import ColumnSettings, cells_of, round_runner
from bayesnde_cli.training.joint_parameters import initial_autoencoder
from bayesnde_cli.training.marginal import marginal_scorer

DECODER = replace(decoder_spec(2, 2, 2), width=32, depth=2)
ENCODER = replace(encoder_spec(2, 2, 2), width=32, depth=2)
SETTINGS = ColumnSettings(batch_rows=128, steps_per_round=250, n_rounds=4, learning_rate=3e-3)
# Of the two columns in the two classes.
MEANS = np.array([[-1.0, 0.5], [1.0, 0.0]])
SDS = np.array([[0.5, 1.0], [0.3, 0.8]])


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Two classes; within a class, the second column repeats the first."""
    rng = np.random.default_rng(0)
    row_class = (rng.random(4000) < 0.3).astype(int)
    shared = rng.standard_normal(4000)
    x = MEANS[row_class] + SDS[row_class] * np.stack([shared, shared], axis=1)
    return x.astype(np.float32), np.eye(2, dtype=np.float32)[row_class]


def _trained(rows: tuple, n_rounds: int) -> AutoencoderState:
    run, cells = round_runner(DECODER, ENCODER, SETTINGS), cells_of(*rows)
    state = autoencoder_state.start(initial_autoencoder(DECODER, ENCODER, 0))
    for _ in range(n_rounds):
        state, losses = run(state, cells, tf.constant(3))
        assert int(losses["first_bad_step"]) == -1
    return state


def _mean_score(state: AutoencoderState, x: np.ndarray, y: np.ndarray) -> float:
    scorer = marginal_scorer(DECODER, ENCODER, n_draws=64)
    return float(np.mean(scorer(state.average, tf.constant(x), tf.constant(y), tf.constant(1)).numpy()))


def test_the_model_is_the_product_of_the_columns_of_each_class(rows: tuple) -> None:
    state = _trained(rows, SETTINGS.n_rounds)
    rng = np.random.default_rng(1)
    row_class = np.arange(400) % 2
    x = (MEANS[row_class] + SDS[row_class] * rng.standard_normal((400, 2))).astype(np.float32)
    y = np.eye(2, dtype=np.float32)[row_class]
    product = norm.logpdf(x, MEANS[row_class], SDS[row_class]).sum(axis=1).mean()
    assert abs(_mean_score(state, x, y) - product) < 0.1
    # Negative controls: the wrong class, and a model that has learnt nothing, are far off.
    assert _mean_score(state, x, y[:, ::-1]) < product - 0.5
    assert _mean_score(_trained(rows, 0), x, y) < product - 0.5


def test_scores_are_the_quantiles_of_each_class(rows: tuple) -> None:
    cells = cells_of(*rows)
    for row_class, (first, n) in enumerate(zip(cells.first_row.numpy(), cells.n_rows.numpy(), strict=True)):
        own = slice(first, first + n)
        assert set(cells.row_class.numpy()[own]) == {row_class}
        order = np.argsort(cells.x.numpy()[own, 1])
        expected = ndtri((np.arange(n) + 0.5) / n)
        np.testing.assert_allclose(cells.scores.numpy()[own, 1][order], expected, atol=1e-6)


def test_a_class_without_rows_does_no_harm() -> None:
    x, y = np.arange(6.0, dtype=np.float32).reshape(3, 2), np.eye(2, dtype=np.float32)[[1, 1, 1]]
    cells = cells_of(x, y)
    assert cells.n_rows.numpy().tolist() == [0, 3]
    assert np.isfinite(cells.scores.numpy()).all()


def test_cells_come_from_their_own_column_and_class(rows: tuple) -> None:
    cells = cells_of(*rows)
    x, y, z = column_loop._drawn(cells, 2, replace(SETTINGS, batch_rows=500, blur=0.0), tf.constant([1, 2]))
    row_class = y.numpy().argmax(axis=1)
    for column in range(2):
        for which in range(2):
            known = cells.x.numpy()[cells.row_class.numpy() == which, column]
            assert np.isin(x.numpy()[row_class == which, column], known).all()
    # The columns of a row no longer know of each other; within the file they are equal.
    assert abs(np.corrcoef(z.numpy().T)[0, 1]) < 0.2
    assert np.corrcoef(cells.scores.numpy().T)[0, 1] > 0.99


def test_a_latent_for_every_column_is_needed() -> None:
    with pytest.raises(ValueError, match="1 latents for 2 columns"):
        round_runner(replace(DECODER, n_in=1), ENCODER, SETTINGS)
