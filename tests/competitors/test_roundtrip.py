"""Roundtrip: its estimator against the closed form of linear generators, and short fits to Gaussian rows."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf
from linear_gaussian_oracle import LinearGaussianOracle
from scipy import stats

from bayesnde_cli.competitors import plain, roundtrip
from bayesnde_cli.competitors.plain import Fitted, KeptState
from bayesnde_cli.competitors.roundtrip import (
    FREEDOMS,
    SETTINGS,
    Choice,
    Estimate,
    Estimator,
    Pair,
    draw,
    log_prob,
    roundtrip_fit,
    train_roundtrip,
)
from bayesnde_cli.errors import NumericalFailure
from bayesnde_cli.model.coders import Networks
from bayesnde_cli.model.layers import Parameters
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import TrainingSettings
from bayesnde_cli.training import recipes
from bayesnde_cli.training.loop import Phase
from bayesnde_cli.training.objectives import Pace
from fake_training import fake_phase
from normal_rows import COVARIANCE, normal, with_classes
from stopping_keeper import Stopped, StoppingKeeper

SIGMA = 0.2
_RNG = np.random.default_rng(5)
ORACLE = LinearGaussianOracle(_RNG.normal(size=(4, 2)), _RNG.normal(size=4), np.full(4, SIGMA**2))
CHOICE = Choice((SIGMA,), 0.25, 5)
N_ROWS = 192  # three blocks
SHIFTS = np.array([[0.0, 0.0, 0.0, 0.0], [3.0, -2.0, 1.0, 0.5]])  # of the rows of each class


def _pair(weights: Parameters) -> Pair:
    """The oracle and the mean of its posterior, or a point that is `off`."""

    def decode(z: tf.Tensor, y: tf.Tensor | None = None) -> tf.Tensor:
        return ORACLE(z)[0] + (0.0 if y is None else tf.matmul(y, tf.constant(SHIFTS, tf.float32)))

    def encode(x: tf.Tensor, y: tf.Tensor | None = None) -> tf.Tensor:
        centred = x - ORACLE.offset - (0.0 if y is None else tf.matmul(y, tf.constant(SHIFTS, tf.float32)))
        slope = ORACLE.posterior(ORACLE.offset + np.eye(4)).mean  # (p, d)
        return tf.matmul(centred, tf.constant(slope, tf.float32)) + weights["off"]

    return Pair(decode, encode)


ESTIMATOR = Estimator(_pair)  # compiled once
RIGHT = {"off": tf.constant(0.0)}


@pytest.fixture(scope="module")
def rows() -> Rows:
    return Rows(ORACLE.sample(N_ROWS, np.random.default_rng(0))[1])


def _estimate(rows: Rows, weights: Parameters = RIGHT, *, n_draws: int = 1000, seed: int = 1) -> Estimate:
    found = ESTIMATOR.estimate(weights, CHOICE, rows, n_draws=n_draws, seed=seed)
    return Estimate(found.log_density[0], found.mc_se[0])


def _product(centre: tf.Tensor, scale: tf.Tensor, z: tf.Tensor, *, freedom: int) -> tf.Tensor:
    """The log-density of independent t's: what a multivariate t is not."""
    distance = (tf.cast(z, tf.float64) - tf.cast(centre, tf.float64)[:, None, :]) / scale
    constant = stats.t.logpdf(0.0, freedom) - tf.math.log(scale)
    return tf.reduce_sum(constant - 0.5 * (freedom + 1) * tf.math.log1p(tf.square(distance) / freedom), axis=2)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_the_proposal_is_scored_as_it_is_drawn(freedom: int) -> None:
    """E_q[N(z; 0, I) / q(z)] is 1, and each coordinate is a t."""
    centre, scale = tf.constant([[0.5, -0.3, 0.2]]), tf.constant(0.8, tf.float64)
    z = draw(centre, scale, 200_000, tf.constant([3, 4]), freedom=freedom)

    def error_of_total(log_prob: Callable[..., tf.Tensor]) -> float:
        log_prior = stats.norm.logpdf(z.numpy().astype(float)).sum(axis=2)
        weights = np.exp(log_prior - log_prob(centre, scale, z, freedom=freedom).numpy())[0]
        return float(abs(weights.mean() - 1.0) / (weights.std() / np.sqrt(len(weights))))

    assert error_of_total(log_prob) < 4.0
    assert error_of_total(_product) > 6.0  # the negative control: scored as a product
    some = z[:, :5000].numpy().astype(float)[0]
    for column in ((some - centre.numpy()) / 0.8).T:
        assert stats.kstest(column, stats.t(freedom).cdf).pvalue > 1e-3
    exact = stats.multivariate_t(centre.numpy()[0], 0.64 * np.eye(3), df=freedom).logpdf(some)
    np.testing.assert_allclose(log_prob(centre, scale, z[:, :5000], freedom=freedom)[0], exact, rtol=1e-6)


def test_a_linear_generator_has_the_density_of_the_closed_form_and_the_errors_cover_it(rows: Rows) -> None:
    found, exact = _estimate(rows), ORACLE.log_density(rows.x)
    standard = (found.log_density - exact) / found.mc_se
    assert found.log_density.dtype == np.float64
    assert found.mc_se.max() < 0.1
    # 192 rows: the share within two errors is 0.954 ± 0.03 (two s.e.), the s.d. 1 ± 0.1, the mean 0 ± 0.14.
    assert 0.90 <= np.mean(np.abs(standard) < 2.0) <= 0.995
    assert 0.8 < standard.std() < 1.2
    assert abs(standard.mean()) < 0.3
    # 200 draws do not fill the last chunk: if its rest counted, ratios would be near 1.28.
    ratio = np.exp(_estimate(rows, n_draws=200).log_density - exact)
    assert abs(ratio.mean() - 1.0) < 4.0 * ratio.std() / np.sqrt(N_ROWS)
    assert ratio.std() / np.sqrt(N_ROWS) < 0.02
    few, many = (np.sqrt(np.mean(_estimate(rows, n_draws=n).mc_se ** 2)) for n in (500, 8000))
    assert few / many == pytest.approx(4.0, rel=0.15)


def test_draws_that_are_scored_as_a_product_miss_the_closed_form(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roundtrip, "log_prob", _product)
    found = Estimator(_pair).estimate(RIGHT, CHOICE, rows, n_draws=1000, seed=1)
    standard = (found.log_density[0] - ORACLE.log_density(rows.x)) / found.mc_se[0]
    assert abs(standard.mean()) > 1.0
    assert np.mean(np.abs(standard) < 2.0) < 0.8


def test_validation_rows_choose_the_true_sigma(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roundtrip, "SCALES", (0.0625, 0.25, 1.0))
    choice, mean = ESTIMATOR.choose(RIGHT, rows, seed=1)
    # 192 rows with two free directions each: sigma is known to 4 %, and the grid's step is 9 %.
    assert SIGMA / 1.15 < choice.sigmas[0] < 1.15 * SIGMA
    # Sigma was fitted to these rows, which costs far less than 0.05; the bias of 1,000 draws may cost the rest.
    assert mean == pytest.approx(ORACLE.log_density(rows.x).mean(), abs=0.05)
    wide, _ = ESTIMATOR.choose(RIGHT, Rows(ORACLE.offset + 2.0 * (rows.x - ORACLE.offset)), seed=1)
    assert wide.sigmas[0] > 1.5 * SIGMA


def test_the_errors_reveal_an_encoder_that_is_off(rows: Rows) -> None:
    found = _estimate(rows, {"off": tf.constant(4.0)})
    assert np.median(found.mc_se) > 0.3
    assert np.median(found.log_density - ORACLE.log_density(rows.x)) < -0.1
    assert found.mc_se.max() <= 1.0


def test_equal_seeds_give_equal_numbers_whatever_the_other_rows_are(rows: Rows) -> None:
    first, again, other = (_estimate(rows, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.any(np.equal(first.log_density, other.log_density))
    assert np.array_equal(first.log_density[:70], _estimate(rows.take(slice(70))).log_density)
    assert len(_estimate(rows.take(slice(0))).log_density) == 0
    odd = rows.x.copy()
    odd[3] = 1e60
    with np.errstate(over="ignore"):
        found = _estimate(Rows(odd)).log_density
    assert not np.isfinite(found[3])
    assert np.array_equal(np.delete(found, 3), np.delete(first.log_density, 3))


def test_rows_of_classes_have_the_density_of_their_class(rows: Rows) -> None:
    classes = np.arange(N_ROWS) % 2
    moved = rows.x + SHIFTS[classes]
    right, wrong = (_estimate(with_classes(moved, own)) for own in (classes, 1 - classes))
    standard = (right.log_density - ORACLE.log_density(rows.x)) / right.mc_se
    assert np.mean(np.abs(standard) < 2.0) > 0.9
    assert wrong.log_density.mean() < right.log_density.mean() - 5.0


# Fits

SMALL = SETTINGS.model_copy(update={"egm_steps": 200, "checks": 2, "width": 32, "depth": 2})
NORMAL = stats.multivariate_normal([0.0, 0.0], COVARIANCE)


def _two_classes(rows: Rows) -> Rows:
    classes = np.arange(len(rows)) % 2
    return with_classes(0.3 * rows.x + np.where(classes == 0, -1.0, 1.0)[:, None], classes, 3)


PLAIN = normal(200, 2)
TRAIN, VALIDATION, EVALUATED = _two_classes(normal(1000, 0)), _two_classes(normal(200, 1)), _two_classes(PLAIN)


@pytest.fixture(scope="module")
def fitted() -> Iterator[Fitted]:
    """A short fit with few candidates. Equal settings share a compiled program: it compiles longer than it runs."""
    kept: dict[tuple, list[Phase]] = {}

    def phases_of(settings: TrainingSettings, networks: Networks, rows: Rows) -> list[Phase]:
        key = (settings, networks, rows.n_classes)
        if key not in kept:
            kept[key] = recipes.phases_of(settings, networks, rows)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roundtrip, "phases_of", phases_of)
        patch.setattr(roundtrip, "SCALES", (0.125, 0.5))
        patch.setattr(roundtrip, "FREEDOMS", (5,))
        yield roundtrip_fit(SMALL, n_draws=1000)(TRAIN, VALIDATION, 1)


@pytest.mark.slow
def test_a_short_conditional_fit_comes_near_the_density_of_each_class(fitted: Fitted) -> None:
    classes = np.arange(len(PLAIN)) % 2
    right, wrong = (fitted.score(with_classes(EVALUATED.x, own, 3)) for own in (classes, 1 - classes))
    assert np.mean(right > wrong) > 0.95
    truth = NORMAL.logpdf(PLAIN.x) - 2.0 * np.log(0.3)
    # 200 adversarial steps of small networks: near it, and never above it by more than the noise of 200 rows.
    assert -0.6 < right.mean() - truth.mean() < 0.1
    unknown = fitted.score(with_classes(EVALUATED.x[:2], np.array([0, 2]), 3))
    assert np.isnan(unknown).tolist() == [False, True]
    mean = fitted.score(VALIDATION).mean()
    chosen = dict(fitted.chosen)
    assert 0.0 < chosen.pop("sigma") < 1.0
    assert chosen.pop("scale") in (0.125, 0.5)
    assert chosen.pop("steps") in (100, 200)
    assert chosen.pop("validation_log_density") == pytest.approx(mean, abs=0.1)
    assert 0.0 < chosen.pop("mean_mc_se") < 0.3
    assert chosen.pop("share_above_0.3") < 0.3
    settings = {"degrees_of_freedom": 5, "latent_dim": 2, "draws": 1000, "fit": "conditional", "n_fit_rows": 1000}
    assert chosen == settings


def test_an_interrupted_training_resumes_to_the_same_numbers(fitted: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_SECONDS_BETWEEN", 0.0)
    keeper = StoppingKeeper()
    fit = roundtrip_fit(SMALL, n_draws=1000, keeper=keeper)
    keeper.n_left = 3
    with pytest.raises(Stopped):
        fit(TRAIN, VALIDATION, 1)
    (state,) = keeper.values()
    assert state["00000"] == 3  # of 4 rounds
    scores = fitted.score(EVALUATED)
    for n_left in (-1, -1):  # one more round; none when it is done
        again = fit(TRAIN, VALIDATION, 1)
        assert np.array_equal(again.score(EVALUATED), scores)
        assert again.chosen == fitted.chosen
        assert keeper.n_left == n_left


def _check_steps(bad_round: int) -> list[int]:
    """The number of steps at each check of four rounds of ten steps, one of which diverges."""

    class State:
        def __init__(self, n_rounds: int) -> None:
            self.n_rounds, self.average = n_rounds, {"w": tf.constant(float(n_rounds))}

    def run(state: State, *_: object) -> tuple[State, dict[str, tf.Tensor]]:
        bad = 3 if state.n_rounds + 1 == bad_round else -1
        return State(state.n_rounds + 1), {"loss": tf.constant(1.0), "first_bad_step": tf.constant(bad)}

    steps: list[int] = []

    def check(weights: Parameters) -> tuple[Choice, float]:
        steps.append(10 * int(weights["w"]))
        return CHOICE, -abs(20.0 - steps[-1])

    phase = fake_phase("egm", run, Pace(5, 5, 10, 4), functions={"start": lambda *_: State(0)})
    settings = SETTINGS.model_copy(update={"seed": 0, "checks": 4})
    rows, kept = Rows(np.zeros((5, 2), np.float32)), KeptState(None, "settings")
    best = train_roundtrip(phase, settings, {}, rows, check=check, kept=kept)
    assert best.n_steps == min(20, steps[-1])
    return steps


def test_training_that_diverges_ends_with_the_checks_before_it() -> None:
    assert _check_steps(bad_round=9) == [10, 20, 30, 40]
    assert _check_steps(bad_round=3) == [10, 20]
    with pytest.raises(NumericalFailure) as caught:
        _check_steps(bad_round=1)
    assert str(caught.value) == (
        "error: the training of roundtrip diverged within its first 10 steps\n"
        "  a loss that is not finite, on 5 training rows\n"
        "hint: evaluate without --baseline roundtrip"
    )
    assert caught.value.exit_code == 4
