"""The engine of a stack against closed forms: a linear-Gaussian decoder with a mixture of normals."""

from dataclasses import replace

import numpy as np
import pytest
from linear_gaussian_oracle import LinearGaussianOracle, random_oracle

from bayesnde_cli.inference.bridge import BRIDGE, IMPORTANCE
from bayesnde_cli.inference.class_screen import FirstFigures
from bayesnde_cli.inference.engine import UNSOUND_SE, Scores
from bayesnde_cli.inference.fitted_model import FittedModel
from bayesnde_cli.inference.stacked import StackedEngine, stacked_look
from bayesnde_cli.inference.tiers import TieredEngine
from bayesnde_cli.model.coders import BlurredDecoder
from bayesnde_cli.model.normal_mixtures import ClassMixtures, NormalMixture
from bayesnde_cli.model.stack import MODEL, Stack
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import DensitySettings

ORACLE = random_oracle(4, 3, seed=5)
# One component lies where the fitted model has its rows, one on its edge, and one far away.
PLACES = ORACLE.offset + np.array([0.0, 3.0, 12.0])[:, None] * np.array([1.0, 1.0, -1.0, 1.0])
MIXTURE = NormalMixture(np.log([0.4, 0.3, 0.3]), PLACES, np.full((3, 4), 0.7))
STACK = Stack({MODEL: 0.6, "Gaussian mixture": 0.4}, {"Gaussian mixture": ClassMixtures((MIXTURE,))})
# Few draws at a time, so that rows of the fitted model take several, and short chains.
SETTINGS = DensitySettings(seed=0, target_se=0.02, importance_draws=64, warm_up=25, draws=25, escalations=0)


def _rows(n_model: int = 240, n_mixture: int = 160) -> Rows:
    """Rows of the fitted model, then of the mixture."""
    of_model = ORACLE.sample(n_model, np.random.default_rng(6))[1]
    return Rows(np.concatenate([of_model, MIXTURE.draw(n_mixture, 7)]).astype(np.float32))


def _truth(rows: Rows, oracle: LinearGaussianOracle = ORACLE, stack: Stack = STACK) -> np.ndarray:
    return stack.add(oracle.log_density(rows.x.astype(float)), rows)


def _engine(settings: DensitySettings = SETTINGS, stack: Stack = STACK) -> StackedEngine:
    return StackedEngine(TieredEngine(FittedModel(ORACLE, 3), settings), stack)


@pytest.fixture(scope="module")
def engine() -> StackedEngine:
    return _engine()


@pytest.fixture(scope="module")
def scores(engine: StackedEngine) -> Scores:
    return engine.estimate(_rows(), 3)


def _coverage(scores: Scores, truth: np.ndarray) -> float:
    return float(np.mean(np.abs(scores["log_density_scaled"] - truth) < 1.96 * scores["mc_se"] + 1e-5))


def test_log_densities_are_exact_within_their_error(scores: Scores) -> None:
    truth = _truth(_rows())
    assert scores["reliable"].all()
    assert (scores["mc_se"] <= SETTINGS.target_se).all()
    # Four standard errors of a share of 95 %. Where the mixture has all of the density there is no error to cover.
    assert _coverage(scores, truth) > 0.95 - 4 * np.sqrt(0.95 * 0.05 / len(truth))
    assert np.abs(scores["log_density_scaled"] - truth).max() < 6 * SETTINGS.target_se
    # The controls: the fitted model alone has other densities, and a few hundredths of a nat would be found.
    assert _coverage(scores, ORACLE.log_density(_rows().x.astype(float))) < 0.2
    assert _coverage(scores, truth + 0.03) < 0.7


def test_rows_that_the_mixture_explains_take_fewer_draws(engine: StackedEngine, scores: Scores) -> None:
    rows = _rows()
    log_odds = ORACLE.log_density(rows.x.astype(float)) - STACK.log_rest(rows)
    few, many = (scores["n_likelihoods"][which] for which in (log_odds < -4.0, log_odds > 4.0))
    assert len(few) > 30
    assert len(many) > 30
    assert few.mean() < 0.7 * many.mean()
    again = engine.estimate(rows, 3)
    for name, values in scores.items():  # equal arguments give equal bits
        np.testing.assert_array_equal(again[name], values, err_msg=name)
    assert (scores["method"][log_odds < -30.0] == IMPORTANCE).all()


def test_missing_cells_are_integrated_out(engine: StackedEngine) -> None:
    rows, kept = _rows(1, 1), [0, 1, 3]
    part = LinearGaussianOracle(ORACLE.weights[kept], ORACLE.offset[kept], ORACLE.variance[kept])
    own = Stack(STACK.weights, {"Gaussian mixture": ClassMixtures((MIXTURE.marginal(np.array(kept)),))})
    found = engine.estimate(replace(rows, observed=np.broadcast_to(np.isin(np.arange(4), kept), rows.x.shape)), 3)
    truth = _truth(replace(rows, x=rows.x[:, kept]), part, own)
    assert (np.abs(found["log_density_scaled"] - truth) < 5 * found["mc_se"] + 1e-4).all()


def test_blur_widens_every_member() -> None:
    rows, blur = _rows(1, 1), 0.8
    wide = LinearGaussianOracle(ORACLE.weights, ORACLE.offset, ORACLE.variance + blur**2)
    model = FittedModel(BlurredDecoder(ORACLE, blur), 3)
    found = StackedEngine(TieredEngine(model, SETTINGS), STACK.blur(blur)).estimate(rows, 3)
    truth = _truth(rows, wide, STACK.blur(blur))
    assert (np.abs(found["log_density_scaled"] - truth) < 5 * found["mc_se"] + 1e-4).all()


def test_bridges_and_audits_are_of_the_stack(engine: StackedEngine) -> None:
    rows = _rows(6, 6)
    truth, audited = _truth(rows), np.isin(np.arange(12), [1, 8])
    found = engine.estimate(rows, 3, audited)
    assert np.isfinite(found["audit_log_density"]).tolist() == audited.tolist()
    error = found["audit_log_density"][audited] - truth[audited]
    # Chains this short may not be reliable: then the error of the audit is infinite.
    assert (np.abs(error) < 5 * np.minimum(found["audit_mc_se"][audited], 0.1) + 1e-4).all()

    rows, truth = rows.take(audited), truth[audited]
    bridged = engine.score(rows, engine.sample(rows, 5), 5)
    assert (bridged["method"] == BRIDGE).all()
    for name, name_of_se in (("log_density_scaled", "mc_se"), ("log_density_is", "mc_se_is")):
        assert (np.abs(bridged[name] - truth) < 5 * bridged[name_of_se] + 1e-4).all(), name
    # Draws are those of the fitted model, whatever the stack.
    np.testing.assert_array_equal(engine.sample(rows, 5).z, engine.engine.sample(rows, 5).z)


def test_a_poor_estimate_will_do_where_the_mixture_has_the_density(engine: StackedEngine) -> None:
    # Chains pushed apart agree on nothing: the first row needs them, the density of the second is the mixture's.
    rows = _rows(1, 400)
    log_odds = ORACLE.log_density(rows.x.astype(float)) - STACK.log_rest(rows)
    rows = rows.take(np.array([0, np.argmin(log_odds)]))
    draws = engine.sample(rows, 1)
    draws = draws._replace(z=draws.z + np.arange(draws.z.shape[1], dtype=np.float32)[:, None, None])
    found = engine.score(rows, draws, 1)
    assert found["reliable"].tolist() == [False, True]
    assert found["mc_se"][1] <= SETTINGS.target_se
    assert found["log_density_scaled"][1] == pytest.approx(_truth(rows)[1], abs=SETTINGS.target_se)
    # The control: without the mixture both are doubtful.
    assert not engine.engine.score(rows, draws, 1)["reliable"].any()


def test_an_estimate_that_fails_a_check_counts_as_off_by_ten_nats() -> None:
    engine = _engine(SETTINGS.model_copy(update={"target_se": 0.1}))
    rows = Rows(np.zeros((3, 4), np.float32), log_rest=np.array([0.0, 13.0, 11.0]))
    log_odds, target = np.zeros(3), 0.1
    allowed = engine.engine.target_se(rows, log_odds)
    assert (allowed >= UNSOUND_SE).tolist() == [False, True, False]
    assert allowed[0] > target


def test_a_screen_of_classes_adds_the_mixture_of_each_class() -> None:
    by_class = Stack(STACK.weights, {"Gaussian mixture": ClassMixtures((MIXTURE, MIXTURE.blur(1.0)))})
    x = _rows(3, 3).x
    of_model = np.stack([ORACLE.log_density(x.astype(float)), np.full(6, np.nan)], axis=1)
    se = np.full((6, 2), 0.2)

    def look(x: np.ndarray, seed: int, prior: np.ndarray, known: np.ndarray | None) -> FirstFigures:
        return FirstFigures(of_model, se, np.zeros(6, np.int64))

    found = stacked_look(look, by_class)(x, 0, np.array([0.5, 0.5]), None)
    np.testing.assert_allclose(found.log_density[:, 0], _truth(Rows(x)))
    assert np.isnan(found.log_density[:, 1]).all()  # not ruled out
    assert (found.se[:, 0] <= 0.2).all()
    assert found.se[:, 0].min() < 1e-3
    # A poor estimate may be far too low, and the mixture does not make it good.
    se[:] = 0.6
    poor = stacked_look(look, by_class)(x, 0, np.array([0.5, 0.5]), None)
    log_odds = of_model[:, 0] - STACK.log_rest(Rows(x))
    assert (poor.se[log_odds > -5.0, 0] > 3.0).all()
