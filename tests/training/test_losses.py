"""Every term of the encoding generative objective against a loop over the paper's formula, and its gradient."""

from collections.abc import Callable

import naive_losses as naive
import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.rng import generator
from bayesnde_cli.training import losses
from bayesnde_cli.training.losses import joint_mmd, marginal_mmd, sliced_wasserstein, slicing_directions, sorted_columns

N_ROWS = 20  # not a power of two, so that the sort has to pad
WIDTHS = (1, 3, 70)


def _batches(p: int, n_rows: int = N_ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Real and generated rows that differ in place, scale and dependence."""
    rng = generator(0, "batches", p, n_rows)
    real = rng.standard_normal((n_rows, p)) @ (np.eye(p) + 0.3 * rng.standard_normal((p, p)))
    return real, 0.4 + 1.3 * rng.standard_normal((n_rows, p))


def _sliced(real: tf.Tensor, generated: tf.Tensor) -> tf.Tensor:
    directions = tf.cast(slicing_directions(real.shape[1], seed=3), real.dtype)
    return sliced_wasserstein(real, generated, directions)


def _naive_sliced(real: np.ndarray, generated: np.ndarray) -> float:
    return naive.sliced_wasserstein(real, generated, slicing_directions(real.shape[1], seed=3).astype(np.float64))


# name -> (ours, the paper's), for terms that compare two batches
TERMS: dict[str, tuple[Callable, Callable]] = {
    "discriminator": (losses.discriminator_loss, naive.discriminator),
    "reconstruction": (
        lambda a, b: losses.reconstruction_loss(a, b, n_columns=7),
        lambda a, b: naive.reconstruction(a, b, 7),
    ),
    "correlation": (losses.correlation_loss, naive.correlation),
    "marginal MMD": (marginal_mmd, naive.marginal_mmd),
    "joint MMD": (joint_mmd, naive.joint_mmd),
    "sliced Wasserstein": (_sliced, _naive_sliced),
}
DISTANCES = [name for name in TERMS if name != "discriminator"]


def _value_and_gradient(term: Callable) -> Callable:
    def both(real: tf.Tensor, generated: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(generated)
            value = term(real, generated)
        return value, tape.gradient(value, generated)

    return both


# Compiled once for each term, as all that is compiled has one shape.
COMPILED = {name: tf.function(_value_and_gradient(ours), jit_compile=True) for name, (ours, _) in TERMS.items()}


@pytest.mark.parametrize("p", WIDTHS)
@pytest.mark.parametrize("name", TERMS)
def test_a_term_is_the_paper_s_formula(name: str, p: int) -> None:
    real, generated = _batches(p)
    ours, paper = TERMS[name]
    found, _ = _value_and_gradient(ours)(tf.constant(real), tf.constant(generated))
    np.testing.assert_allclose(found, paper(real, generated), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", TERMS)
def test_compiled_in_float32_a_term_and_its_gradient_are_those_of_float64(name: str) -> None:
    real, generated = _batches(15)
    ours, _ = TERMS[name]
    exact, exact_gradient = _value_and_gradient(ours)(tf.constant(real), tf.constant(generated))
    arguments = tf.constant(real, tf.float32), tf.constant(generated, tf.float32)
    found, gradient = COMPILED[name](*arguments)
    # float32 has 6e-8; the narrowest kernel is the 400th power of the widest.
    np.testing.assert_allclose(found, exact, rtol=1e-5)
    np.testing.assert_allclose(gradient, exact_gradient, atol=1e-4 * np.abs(exact_gradient).max())


@pytest.mark.parametrize("name", TERMS)
def test_the_gradient_of_a_term_is_its_finite_difference(name: str) -> None:
    real, generated = _batches(3, 7)
    ours, _ = TERMS[name]
    _, gradient = _value_and_gradient(ours)(tf.constant(real), tf.constant(generated))
    if name in ("joint MMD", "sliced Wasserstein"):
        ours = _with_fixed_scale(name, real, generated)
    both = tf.function(_value_and_gradient(ours))
    step = 1e-5
    expected = np.empty_like(generated)
    for cell in np.ndindex(generated.shape):
        ends = []
        for sign in (1.0, -1.0):
            moved = generated.copy()
            moved[cell] += sign * step
            ends.append(float(both(tf.constant(real), tf.constant(moved))[0]))
        expected[cell] = (ends[0] - ends[1]) / (2.0 * step)
    # A central difference errs by step^2 / 6 times the third derivative, here below 1e5 (h = 0.05).
    np.testing.assert_allclose(gradient, expected, atol=2e-6)
    assert np.abs(expected).max() > 1e-3


def _with_fixed_scale(name: str, real: np.ndarray, generated: np.ndarray) -> Callable:
    """The term with the pooled moments of the given batches: the paper counts them as constants."""
    pooled = np.concatenate([real, generated])
    mean, scale = pooled.mean(axis=0), np.sqrt(pooled.var(axis=0) + 1e-6)
    directions = tf.cast(slicing_directions(real.shape[1], seed=3), tf.float64)

    def term(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        x, y = (x - mean) / scale, (y - mean) / scale
        if name == "joint MMD":
            return losses._joint_mmd(x, y)
        return losses._squared_wasserstein(x @ directions, y @ directions)

    return term


@pytest.mark.parametrize("name", DISTANCES)
def test_a_distance_is_nil_between_equal_batches_and_positive_between_others(name: str) -> None:
    real, generated = (tf.constant(batch, tf.float32) for batch in _batches(5))
    ours, _ = TERMS[name]
    value, gradient = _value_and_gradient(ours)(real, tf.identity(real))
    assert abs(float(value)) < 1e-6
    assert np.abs(gradient).max() < 1e-5
    assert float(ours(real, generated)) > 1e-2
    if name in ("marginal MMD", "joint MMD", "sliced Wasserstein"):  # they do not see the order of rows
        assert abs(float(ours(real, real[::-1]))) < 1e-6


@pytest.mark.parametrize("name", DISTANCES)
def test_gradients_stay_finite_for_constant_columns_equal_rows_and_far_values(name: str) -> None:
    real, generated = _batches(15)
    generated[:, 0] = 0.1  # constant, and not a float32
    generated[:, 1] = 0.0
    generated[1] = generated[0]
    generated[2, 3] = 1e6
    real[:, 2] = generated[:, 2] = 3.0
    arguments = tf.constant(real, tf.float32), tf.constant(generated, tf.float32)
    value, gradient = COMPILED[name](*arguments)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_a_loss_that_is_not_finite_is_seen() -> None:
    real, generated = _batches(3)
    generated[4, 1] = np.nan
    for ours, _ in TERMS.values():
        assert np.isnan(float(ours(tf.constant(real), tf.constant(generated))))


@pytest.mark.parametrize("term", [marginal_mmd, joint_mmd])
def test_batches_of_the_kernel_terms_may_differ_in_size(term: Callable) -> None:
    real, generated = _batches(2)
    paper = {marginal_mmd: naive.marginal_mmd, joint_mmd: naive.joint_mmd}[term]
    found = term(tf.constant(real), tf.constant(generated[:13]))
    np.testing.assert_allclose(found, paper(real, generated[:13]), rtol=1e-10)


def test_generator_and_encoder_want_the_score_of_real_rows() -> None:
    scores = np.array([[0.9], [0.2], [-1.0]])
    np.testing.assert_allclose(losses.adversarial_loss(tf.constant(scores)), (0.0 + 0.49 + 3.61) / 3)
    assert float(losses.adversarial_loss(tf.fill([4, 1], 0.9))) == 0.0
    assert float(losses.discriminator_loss(tf.fill([4, 1], 0.9), tf.fill([4, 1], 0.1))) == 0.0


def test_the_correlation_of_a_constant_column_is_nil_also_with_itself() -> None:
    x = generator(0, "x").standard_normal((30, 3))
    expected = np.asarray(np.corrcoef(x, rowvar=False))
    np.testing.assert_allclose(losses.correlation_matrix(tf.constant(x)), expected, atol=1e-12)
    x[:, 1] = 0.1
    expected[1, :] = expected[:, 1] = 0.0
    np.testing.assert_allclose(losses.correlation_matrix(tf.constant(x, tf.float32)), expected, atol=1e-6)


@pytest.mark.parametrize("p", [1, 15])
def test_the_variance_terms_are_their_formulas(p: int) -> None:
    variance = 10.0 ** generator(0, "variance", p).uniform(-6, 1, (N_ROWS, p))
    tensor = tf.constant(variance)
    np.testing.assert_allclose(losses.log_variance_loss(tensor), naive.log_variance(variance), rtol=1e-12)
    np.testing.assert_allclose(losses.squared_variance_loss(tensor), np.mean([v**4 for v in np.sqrt(variance)]))
    assert float(losses.log_variance_loss(tf.fill([3, p], tf.constant(0.01, tf.float64)))) < 1e-10
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        value = losses.log_variance_loss(tensor)
    expected = 2 * (np.log(variance + 1e-8) - np.log(0.01)) / (variance + 1e-8) / variance.size
    np.testing.assert_allclose(tape.gradient(value, tensor), expected, rtol=1e-10)


@pytest.mark.parametrize("p", [1, 15, 64, 70])
def test_directions_are_the_axes_if_they_fit_and_then_fixed_random_unit_vectors(p: int) -> None:
    directions = slicing_directions(p, seed=3)
    n_axes = p if p <= 64 else 0
    assert directions.shape == (p, 64)
    np.testing.assert_array_equal(directions[:, :n_axes], np.eye(p)[:, :n_axes])
    np.testing.assert_allclose(np.linalg.norm(directions, axis=0), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(directions, slicing_directions(p, seed=3))
    if p in (15, 70):
        assert (directions[:, n_axes:] != slicing_directions(p, seed=4)[:, n_axes:]).all()


@pytest.mark.parametrize("n_rows", [1, 3, 8, 100])
def test_the_network_sorts_as_numpy_does_ties_included(n_rows: int) -> None:
    values = np.round(generator(0, "sort", n_rows).standard_normal((n_rows, 5)), 1).astype(np.float32)
    in_order, row_index = sorted_columns(tf.constant(values))
    np.testing.assert_array_equal(in_order, np.sort(values, axis=0))
    np.testing.assert_array_equal(np.take_along_axis(values, row_index.numpy(), axis=0), in_order)
    np.testing.assert_array_equal(np.sort(row_index, axis=0), np.tile(np.arange(n_rows)[:, None], 5))
