"""Lower bounds of log p(x) and their gradients, on a linear-Gaussian model whose log p(x) is known."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp
from scipy.stats import norm

from bayesnde_cli.rng import generator
from bayesnde_cli.training.bounds import (
    doubly_reparameterised_loss,
    elbo,
    gaussian_kl,
    importance_weighted_bound,
    log_importance_weights,
)

# x | z ~ N(SLOPE z, NOISE^2), z ~ N(0, 1): log p(x), posterior mean and sd in closed form.
SLOPE, NOISE = 1.5, 0.7
EVIDENCE_SD = np.hypot(SLOPE, NOISE)
POSTERIOR_SD = NOISE / EVIDENCE_SD
POSTERIOR_SLOPE = SLOPE / EVIDENCE_SD**2


def _log_likelihood(x: tf.Tensor, z: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
    """(rows, 1), (rows, draws, 1) -> (rows, draws)."""
    return -0.5 * tf.square((x - slope * z[:, :, 0]) / NOISE) - np.log(NOISE * np.sqrt(2.0 * np.pi))


def _x(n_rows: int) -> np.ndarray:
    return EVIDENCE_SD * generator(0, "x").standard_normal((n_rows, 1))


def test_the_divergence_is_that_of_a_large_sample_and_nil_for_the_prior() -> None:
    mean, log_sd = np.array([[0.5, -1.0], [0.0, 0.0]]), np.array([[-0.3, 0.2], [0.0, 0.0]])
    found = gaussian_kl(tf.constant(mean), tf.constant(log_sd)).numpy()
    sd = np.exp(log_sd)
    z = mean + sd * generator(0, "kl").standard_normal((200_000, 2, 2))
    drawn = (norm(mean, sd).logpdf(z) - norm.logpdf(z)).sum(axis=-1)
    np.testing.assert_allclose(found, drawn.mean(axis=0), atol=4 * drawn.std(axis=0).max() / np.sqrt(len(z)))
    assert found[1] == 0.0 < found[0]


def test_the_evidence_lower_bound_is_log_p_at_the_posterior_and_below_it_elsewhere() -> None:
    x = _x(6)
    for shift, is_exact in ((0.0, True), (0.5, False)):
        mean, log_sd = tf.constant(POSTERIOR_SLOPE * x + shift), tf.fill([6, 1], tf.constant(np.log(POSTERIOR_SD)))
        # E_q log p(x|z) in closed form.
        expected_square = (x - SLOPE * mean) ** 2 + (SLOPE * POSTERIOR_SD) ** 2
        likelihood = -0.5 * expected_square[:, 0] / NOISE**2 - np.log(NOISE * np.sqrt(2 * np.pi))
        bound = elbo(likelihood, gaussian_kl(mean, log_sd), 1.0).numpy()
        truth = norm(0, EVIDENCE_SD).logpdf(x[:, 0])
        np.testing.assert_allclose(bound + 0.5 * (shift / POSTERIOR_SD) ** 2, truth, rtol=1e-10)
        assert np.allclose(bound, truth) == is_exact


def test_the_weight_of_the_divergence_is_its_factor() -> None:
    np.testing.assert_allclose(elbo(tf.constant([-3.0]), tf.constant([2.0]), 0.25), [-3.5])


def test_weights_are_all_p_when_the_proposal_is_the_posterior() -> None:
    x = _x(5)
    mean = POSTERIOR_SLOPE * x
    z = mean[:, None, :] + POSTERIOR_SD * generator(0, "z").standard_normal((5, 7, 1))
    z, x_row = tf.constant(z), tf.constant(x)
    log_sd = tf.fill([5, 1], tf.constant(np.log(POSTERIOR_SD)))
    likelihood = _log_likelihood(x_row, z, tf.constant(SLOPE, tf.float64))
    log_w = log_importance_weights(likelihood, z, tf.constant(mean), log_sd)
    truth = norm(0, EVIDENCE_SD).logpdf(x)
    np.testing.assert_allclose(log_w, np.broadcast_to(truth, (5, 7)), rtol=1e-10)
    np.testing.assert_allclose(importance_weighted_bound(log_w), truth[:, 0], rtol=1e-10)
    wrong = log_importance_weights(likelihood, z, tf.constant(mean + 0.3), log_sd).numpy()
    assert np.std(wrong, axis=1).min() > 0.1


@pytest.mark.parametrize("n_draws", [1, 5])
def test_the_bound_is_the_log_of_the_mean_weight_even_when_weights_underflow(n_draws: int) -> None:
    log_w = -2000.0 + 30.0 * generator(0, "log w").standard_normal((4, n_draws))
    found = importance_weighted_bound(tf.constant(log_w))
    np.testing.assert_allclose(found, logsumexp(log_w, axis=1) - np.log(n_draws), rtol=1e-12)


def _gradients(noise: tf.Tensor, x: tf.Tensor, *, doubly: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Loss and gradients for (encoder slope, encoder log sd, decoder slope) at a proposal that is not the posterior."""
    parameters = [tf.constant(value, tf.float64) for value in (0.0, -0.1, SLOPE)]
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        encoder_slope, encoder_log_sd, decoder_slope = parameters
        mean, log_sd = encoder_slope * x, encoder_log_sd * tf.ones_like(x)
        z = mean[:, None, :] + tf.exp(log_sd)[:, None, :] * noise
        if doubly:
            fixed = tf.stop_gradient(mean), tf.stop_gradient(log_sd)
            loss = doubly_reparameterised_loss(
                z, lambda z: log_importance_weights(_log_likelihood(x, z, decoder_slope), z, *fixed)
            )
        else:
            log_w = log_importance_weights(_log_likelihood(x, z, decoder_slope), z, mean, log_sd)
            loss = -tf.reduce_mean(importance_weighted_bound(log_w))
    return loss, tf.stack(tape.gradient(loss, parameters))


def test_doubly_reparameterised_gradients_have_the_same_mean_and_less_noise() -> None:
    n_replications, n_draws = 40_000, 8
    x = tf.constant([[1.8]], tf.float64)
    noise = tf.constant(generator(0, "noise").standard_normal((n_replications, 1, n_draws, 1)))

    @tf.function
    def replicated(doubly: bool) -> tf.Tensor:
        return tf.vectorized_map(lambda one: _gradients(one, x, doubly=doubly)[1], noise)

    plain, doubly = replicated(False).numpy(), replicated(True).numpy()  # (replications, 3)
    difference = doubly - plain  # common random numbers
    standard_error = difference.std(axis=0) / np.sqrt(n_replications)
    assert (np.abs(difference.mean(axis=0)[:2]) < 5 * standard_error[:2]).all()
    # The encoder's gradient is not nil, so the agreement says something.
    assert (np.abs(plain.mean(axis=0)[:2]) > 10 * standard_error[:2]).all()
    assert (doubly.std(axis=0)[:2] < 0.8 * plain.std(axis=0)[:2]).all()
    # The decoder's is the same number, draw by draw.
    np.testing.assert_allclose(doubly[:, 2], plain[:, 2], rtol=1e-9)


def test_without_the_square_the_encoder_gradient_would_be_wrong() -> None:
    """The negative control: v instead of v^2, which is what autodiff of the surrogate's first part would give."""
    n_replications, n_draws = 20_000, 8
    noise = generator(0, "noise").standard_normal((n_replications, n_draws))
    sd, x = np.exp(-0.1), 1.8  # the proposal of `_gradients`, whose mean is 0
    z = sd * noise
    log_w = norm(SLOPE * z, NOISE).logpdf(x) + norm.logpdf(z) - norm(0, sd).logpdf(z)
    share = np.exp(log_w - logsumexp(log_w, axis=1, keepdims=True))
    slope_of_log_w = SLOPE * (x - SLOPE * z) / NOISE**2 - z + z / sd**2
    right, wrong = (-(weight * slope_of_log_w).sum(axis=1) * x for weight in (share**2, share))
    tensor = tf.constant(noise[:1, :, None])
    _, first = _gradients(tensor, tf.constant([[x]], tf.float64), doubly=True)
    np.testing.assert_allclose(first[0], right[0], rtol=1e-9)
    assert abs(wrong.mean() - right.mean()) > 5 * (wrong - right).std() / np.sqrt(n_replications)


def test_the_value_is_minus_the_mean_bound_and_compiles() -> None:
    x = tf.constant(_x(5))
    noise = tf.constant(generator(0, "noise").standard_normal((5, 6, 1)))
    plain, _ = _gradients(noise, x, doubly=False)
    eager, gradient = _gradients(noise, x, doubly=True)
    compiled, compiled_gradient = tf.function(lambda n, x: _gradients(n, x, doubly=True), jit_compile=True)(noise, x)
    np.testing.assert_allclose([eager, compiled], [plain, plain], rtol=1e-12)
    np.testing.assert_allclose(compiled_gradient, gradient, rtol=1e-9)
