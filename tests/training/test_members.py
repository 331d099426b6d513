"""Members of a stack, fitted to rows of a known distribution, and the weights of the stack."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity

from bayesnde_cli.model.normal_mixtures import NormalMixture, log_sum_exp, squared_distances
from bayesnde_cli.model.stack import MODEL
from bayesnde_cli.rows import Rows
from bayesnde_cli.training import members
from bayesnde_cli.training.members import (
    BANDWIDTHS,
    LEAST_WEIGHT,
    fit_classes,
    fit_gaussian_mixture,
    fit_kernels,
    fit_stack,
    kernel_mixture,
    score_bandwidths,
    stack_weights,
)

TWO_MODES = NormalMixture(np.log([0.5, 0.5]), np.array([[-2.0, -2.0], [2.0, 2.0]]), np.full((1, 2), 0.3))


def _two_modes(n: int, seed: int = 0) -> np.ndarray:
    return TWO_MODES.draw(n, seed)


def _log_stack(log_weights: np.ndarray, log_densities: np.ndarray) -> np.ndarray:
    """The log-density of a stack, from those of its members (members, n)."""
    return log_sum_exp(log_weights[:, None] + log_densities, axis=0)


# Gaussian mixtures


@pytest.mark.parametrize("covariance", ["full", "diag"])
@pytest.mark.parametrize("n_components", [1, 2])
def test_a_fitted_mixture_is_scikit_learns(covariance: str, n_components: int) -> None:
    x = _two_modes(500)
    exact = GaussianMixture(n_components, covariance_type=covariance, reg_covar=members.RIDGE, random_state=0).fit(x)
    found = members._fit_normals(x, n_components, covariance, 0)
    np.testing.assert_allclose(found.log_density(x), exact.score_samples(x), atol=1e-3)


def test_with_few_validation_rows_training_rows_choose_too(monkeypatch: pytest.MonkeyPatch) -> None:
    train, few, rows = Rows(_two_modes(300, 0)), Rows(_two_modes(3, 1)), _two_modes(1000, 2)
    fitted = fit_gaussian_mixture(train, few, 0)
    assert fitted.chosen["components"] == 2
    assert fitted.mixture.log_density(rows).mean() == pytest.approx(TWO_MODES.log_density(rows).mean(), abs=0.05)
    # The control: the three rows alone choose by chance.
    monkeypatch.setattr(members, "FEW_ROWS", 3)
    assert fit_gaussian_mixture(train, few, 0).chosen["components"] != 2


def test_folds_hold_out_every_row_once_and_copies_together() -> None:
    x = np.repeat(_two_modes(40), 3, axis=0)
    parts = list(members._folds([Rows(x[:70]), Rows(x[70:])], 0))
    assert len(parts) == 5
    held_out = np.concatenate([part for _, part in parts])
    np.testing.assert_array_equal(np.sort(held_out, axis=0), np.sort(x, axis=0))
    for fitted, part in parts:
        assert len(fitted) + len(part) == len(x)
        assert not set(map(tuple, fitted)) & set(map(tuple, part))


@pytest.mark.parametrize("n_rows", [1, 2, 6])
@pytest.mark.parametrize("n_validation", [0, 1, 200])
def test_the_smallest_tables_have_a_density(n_rows: int, n_validation: int) -> None:
    train, validation = _two_modes(n_rows), _two_modes(n_validation, 1)
    for x in (train, np.repeat(train[:1], n_rows, axis=0)):
        for fit in (fit_gaussian_mixture, fit_kernels):
            fitted = fit(Rows(x), Rows(validation), 0)
            assert np.isfinite(fitted.mixture.log_density(train)).all()
            assert fitted.chosen["n_fit_rows"] == n_rows


@pytest.mark.parametrize("n_validation", [20, 200])
def test_where_no_covariance_can_be_inverted_columns_are_independent(n_validation: int) -> None:
    rng = np.random.default_rng(0)
    first = 1e6 * rng.standard_normal((100 + n_validation, 1))
    x = np.concatenate([first, 2.0 * first + 1.0, first / 1e6], axis=1)  # next to 1e12 the ridge is lost to rounding
    with pytest.raises(np.linalg.LinAlgError):
        members.fit_gaussian(x[:100])
    fitted = fit_gaussian_mixture(Rows(x[:100]), Rows(x[100:]), 0)
    assert fitted.chosen["covariance"] == "diag"
    assert np.isfinite(fitted.mixture.log_density(x)).all()


def test_a_validation_row_far_out_does_not_stop_a_fit() -> None:
    validation = np.concatenate([_two_modes(10, 1), [[1e18, 1e18]]])
    fitted = fit_gaussian_mixture(Rows(_two_modes(100)), Rows(validation), 0)
    assert fitted.chosen["n_fit_rows"] == 100
    assert np.isfinite(fitted.mixture.log_density(validation[:10])).all()


def test_classes_have_their_own_fits_and_an_empty_one_none() -> None:
    x, classes = _two_modes(300), np.arange(300) % 2 * 2
    rows = Rows(x + 50.0 * classes[:, None], y=np.eye(4, dtype=np.float32)[classes])
    mixtures, chosen = fit_classes(fit_kernels, rows, rows, 0)
    assert [mixture is None for mixture in mixtures.mixtures] == [False, True, False, True]
    assert {index: own["n_fit_rows"] for index, own in chosen.items()} == {0: 150, 2: 150}
    assert np.isfinite(mixtures.log_density(rows)).all()
    single, _ = fit_classes(fit_kernels, Rows(x), Rows(x), 0)
    assert len(single.mixtures) == 1


# Kernel densities


def test_a_kernel_density_integrates_to_one() -> None:
    grid = np.linspace(-8.0, 8.0, 4002)[:, None]  # no point lies on a kernel
    for bandwidth in (0.1, 0.5):
        log_density = kernel_mixture(np.array([[-1.0], [0.5], [0.6]]), bandwidth).log_density(grid)
        assert np.trapezoid(np.exp(log_density), grid[:, 0]) == pytest.approx(1.0, abs=1e-6)


def test_scores_of_bandwidths_are_log_densities_up_to_a_constant() -> None:
    x, kernels = _two_modes(300, 1), _two_modes(400)
    x = x[squared_distances(x, kernels).min(axis=1) > 1e-4]  # no row lies on a kernel
    assert len(x) > 200
    constant = np.log(len(kernels)) + np.log(2.0 * np.pi)
    for bandwidth, scores in zip(BANDWIDTHS, score_bandwidths(x, kernels), strict=True):
        np.testing.assert_allclose(scores - constant, kernel_mixture(kernels, bandwidth).log_density(x), rtol=1e-8)


def test_few_validation_rows_choose_the_bandwidth_together_with_training_rows_left_out() -> None:
    train, few = _two_modes(60, 0), _two_modes(20, 1)
    pool = np.concatenate([train, few])
    exact = [
        sum(
            KernelDensity(bandwidth=h).fit(np.delete(pool, row, axis=0)).score(pool[row : row + 1])
            for row in range(len(pool))
        )
        for h in BANDWIDTHS
    ]
    found = fit_kernels(Rows(train), Rows(few), 0)
    assert found.chosen["bandwidth"] == BANDWIDTHS[int(np.argmax(exact))]
    assert len(found.mixture.means) == 60  # validation rows choose, but are no kernels


def test_copies_of_rows_do_not_make_the_smallest_bandwidth_win() -> None:
    train, none = _two_modes(200), Rows(np.empty((0, 2)))
    copied = np.repeat(train, 2, axis=0)
    plain = fit_kernels(Rows(train), none, 0).chosen["bandwidth"]
    for x in (copied, copied[:250], np.concatenate([train, np.repeat(train[:1], 50, axis=0)])):
        assert 0.5 < fit_kernels(Rows(x), none, 0).chosen["bandwidth"] / plain < 2.0
    # The control: with one row left out, but not its copies, narrow kernels win.
    single = np.arange(len(copied))
    scores = score_bandwidths(copied, copied, row_ids=(single, single)).mean(axis=1)
    assert BANDWIDTHS[int(np.argmax(scores))] < plain / 4.0


def test_copies_are_those_of_values_whatever_their_noise() -> None:
    values = np.repeat(np.arange(60.0), 3)[:, None]
    noisy = values + np.random.default_rng(0).random(values.shape)
    known, unknown = Rows(noisy, values=values), Rows(noisy)
    assert len(np.unique(members.distinct_ids(known))) == 60
    assert len(np.unique(members.distinct_ids(unknown))) == 180  # the control
    np.testing.assert_array_equal(members.distinct_ids(known.take(slice(90)), known.take(slice(90, 180))), values[:, 0])


def test_a_training_row_is_not_explained_by_its_own_kernel() -> None:
    train = np.concatenate([_two_modes(200), [[9.0, -9.0]]])
    mixture = kernel_mixture(train, 0.2)
    exact = [
        KernelDensity(bandwidth=0.2).fit(np.delete(train, row, axis=0)).score(train[row : row + 1]) for row in (0, 200)
    ]
    np.testing.assert_allclose(mixture.log_density(train[[0, 200]]), exact, rtol=1e-6)
    # Of rows that recur one is left out, with a mask as well.
    often = np.concatenate([np.repeat(train[:1], 30, axis=0), train[1:]])
    exact = KernelDensity(bandwidth=0.2).fit(often[1:]).score(often[:1])
    np.testing.assert_allclose(kernel_mixture(often, 0.2).log_density(often[:1])[0], exact, rtol=1e-6)
    observed = np.array([[True, False]])
    exact = KernelDensity(bandwidth=0.2).fit(often[1:, :1]).score(often[:1, :1])
    np.testing.assert_allclose(kernel_mixture(often, 0.2).log_density(often[:1], observed)[0], exact, rtol=1e-6)
    # The controls: a row next to the outlier has its kernel, and a density of copies of one row is not 0.
    assert mixture.log_density(train[200:] + 0.01)[0] > mixture.log_density(train[200:])[0] + 50.0
    assert np.isfinite(kernel_mixture(np.repeat(train[:1], 5, axis=0), 0.2).log_density(train[:1])).all()


# Stacking


def _log_densities(x: np.ndarray) -> np.ndarray:
    """Three members: one is right for 70 % of the rows, one for 30 %, one for none."""
    return np.array([norm(-2.0, 1.0).logpdf(x), norm(2.0, 0.5).logpdf(x), norm(0.0, 30.0).logpdf(x)])


def _stacked_rows(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < 0.7, rng.normal(-2.0, 1.0, n), rng.normal(2.0, 0.5, n))


def test_the_weights_are_those_of_the_mixture_that_the_rows_came_from() -> None:
    log_densities = _log_densities(_stacked_rows(20_000))
    weights = np.exp(stack_weights(log_densities))
    # Four standard errors of a share of 0.7; the members hardly overlap.
    assert abs(weights[0] - 0.7) < 4.0 * np.sqrt(0.7 * 0.3 / 20_000)
    assert weights[2] == 0.0
    assert weights.sum() == pytest.approx(1.0)
    # Dropping a member loses next to nothing, and the stack beats its members.
    density = _log_stack(np.log([0.7, 0.3, 1e-9]), log_densities).mean()
    assert _log_stack(np.log(weights, where=weights > 0, out=np.full(3, -np.inf)), log_densities).mean() >= density
    assert density > log_densities.mean(axis=1).max() + 0.5


@pytest.mark.parametrize("distance", [0.01, 0.3, 5.0])
def test_no_other_weights_are_better(distance: float) -> None:
    x = np.random.default_rng(1).normal(size=3000)
    log_densities = np.array([norm(0, 1.2).logpdf(x), norm(distance, 1).logpdf(x), norm(-distance, 1).logpdf(x)])

    def objective(weights: np.ndarray) -> float:
        return float((_log_stack(np.log(weights), log_densities).sum() + np.log(weights).sum()) / len(x))

    found = members._maximise(log_densities, 1.0)
    best = objective(found)
    for other in np.random.default_rng(3).dirichlet(np.ones(3), 200):
        for share in (1.0, 0.01):
            assert objective((1.0 - share) * found + share * other) <= best + 1e-8
    assert objective(np.full(3, 1 / 3)) < best  # the control


def test_every_step_is_at_least_as_high_as_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    log_densities = _log_densities(_stacked_rows(500))
    heights = []
    for n_steps in range(12):
        monkeypatch.setattr(members, "_MOST_STEPS", n_steps)
        weights = members._maximise(log_densities, 1.0)
        heights.append(_log_stack(np.log(weights), log_densities).sum() + np.log(weights).sum())
    assert np.all(np.diff(heights) >= -1e-9)
    assert heights[-1] > heights[0] + 10.0


def test_few_rows_leave_every_member_a_weight_and_many_do_not() -> None:
    x = np.full(400, -2.0)
    few, many = (np.exp(stack_weights(_log_densities(x[:n]))) for n in (3, 400))
    assert few.min() > 0.1
    assert few.argmax() == 0
    assert np.exp(stack_weights(_log_densities(x[:3]), pseudo_rows=1e-6)).min() == 0.0  # the control
    np.testing.assert_array_equal(many, [1.0, 0.0, 0.0])
    np.testing.assert_allclose(np.exp(stack_weights(np.empty((3, 0)))), 1 / 3)


def test_rows_without_a_density_do_not_count_and_the_only_density_of_a_row_stays() -> None:
    log_densities = _log_densities(_stacked_rows(1000))[:2]
    usual = stack_weights(log_densities)
    nothing = np.array([[np.nan, -np.inf], [-np.inf, np.nan]])
    np.testing.assert_array_equal(stack_weights(np.concatenate([log_densities, nothing], axis=1)), usual)
    # A third member is bad at all rows but one, which nobody else has.
    third = np.append(np.full(1000, -50.0), -1.0)
    others = np.concatenate([log_densities, np.full((2, 1), np.nan)], axis=1)
    log_weights = stack_weights(np.array([*others, third]))
    assert 0.0 < np.exp(log_weights[2]) < members.LEAST_WEIGHT
    assert np.isneginf(stack_weights(np.array([*log_densities, third[:-1]]))[2])


@pytest.mark.parametrize("offset", [-50.0, -1.0, 0.0, 1.0, 50.0])
def test_a_stack_is_as_good_as_its_best_member_up_to_the_prior(offset: float) -> None:
    train, validation = Rows(_two_modes(200).astype(np.float32)), Rows(_two_modes(60, 1).astype(np.float32))
    log_density = TWO_MODES.log_density(validation.x) + offset * norm.cdf(validation.x[:, 0])
    log_density[:2] = np.nan  # rows without an estimate
    stack, chosen = fit_stack(train, validation, log_density, 0)
    assert [*chosen] == [*stack.mixtures]
    assert sum(stack.weights.values()) == pytest.approx(1.0, abs=1e-12)
    assert stack.weights[MODEL] >= LEAST_WEIGHT / (1.0 + LEAST_WEIGHT)
    assert list(stack.weights) == [MODEL, *stack.mixtures]
    parts = np.array([log_density, *(own.log_density(validation) for own in stack.mixtures.values())])[:, 2:]
    total = stack.add(log_density, validation)[2:].sum()
    # Weights of 1/n for all members but the best lose a nat each, and log n each in the prior. Ours lose no more.
    least = parts.sum(axis=1).max() - 2 * (1.0 + np.log(60))
    assert total >= least
    if abs(offset) > 10.0:  # the control: equal weights lose more
        assert _log_stack(np.full(len(parts), -np.log(len(parts))), parts).sum() < least
