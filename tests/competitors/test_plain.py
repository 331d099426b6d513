"""Plain estimators against closed forms and scikit-learn, and the saved states of long fits."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from sklearn.neighbors import KernelDensity

from bayesnde_cli.competitors import DENSITIES, DETECTORS, plain
from bayesnde_cli.competitors.plain import by_class
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings import read_preset
from bayesnde_cli.training.members import BANDWIDTHS
from normal_rows import normal, with_classes
from stopping_keeper import StoppingKeeper


def _two_modes(n: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    return Rows(rng.normal(size=(n, 2)) * 0.3 + np.where(rng.uniform(size=(n, 1)) < 0.5, -2.0, 2.0))


def _log_two_modes(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(*(stats.norm(centre, 0.3).logpdf(x).sum(axis=1) + np.log(0.5) for centre in (-2.0, 2.0)))


def test_the_gaussian_is_scipys() -> None:
    train, rows = normal(1000, 0), normal(200, 1)
    exact = stats.multivariate_normal(train.x.mean(axis=0), np.cov(train.x.T, ddof=0)).logpdf(rows.x)
    np.testing.assert_allclose(plain.gaussian(train, train, 0).score(rows), exact, atol=1e-4)


def test_the_mixture_finds_the_modes_that_a_gaussian_cannot() -> None:
    train, validation, rows = _two_modes(1500, 0), _two_modes(300, 1), _two_modes(300, 2)
    mixture, gaussian = (fit(train, validation, 3) for fit in (plain.gaussian_mixture, plain.gaussian))
    truth = _log_two_modes(rows.x).mean()
    assert mixture.chosen["components"] >= 2
    assert mixture.score(rows).mean() == pytest.approx(truth, abs=0.03)
    assert gaussian.score(rows).mean() < truth - 0.5


def test_validation_rows_choose_the_mixture() -> None:
    """What suits validation rows around one centre is not what suits the training rows."""
    rng = np.random.default_rng(2)
    train = np.concatenate([rng.normal(size=(200, 2)), rng.normal(size=(200, 2)) * 0.1 + 5.0])
    many = plain.gaussian_mixture(Rows(train), Rows(train[::2]), 0)
    one = plain.gaussian_mixture(Rows(train), Rows(rng.normal(size=(200, 2)) * 3.0 + 2.5), 0)
    assert one.chosen["components"] < many.chosen["components"]


def test_the_kernel_density_is_scikit_learns_with_the_bandwidth_that_validation_rows_choose() -> None:
    train, validation, rows = (_two_modes(n, seed) for seed, n in enumerate((400, 200, 300)))
    fitted = plain.kernel_density(train, validation, 0)
    scores = [KernelDensity(bandwidth=h).fit(train.x).score(validation.x) for h in BANDWIDTHS]
    assert fitted.chosen["bandwidth"] == BANDWIDTHS[int(np.argmax(scores))]
    assert 0 < np.argmax(scores) < len(BANDWIDTHS) - 1
    exact = KernelDensity(bandwidth=fitted.chosen["bandwidth"]).fit(train.x)
    np.testing.assert_allclose(fitted.score(rows), exact.score_samples(rows.x), atol=1e-9)
    # Those of `reproduce` are as wide as the preset blurs a model.
    blur = read_preset("outliers")["density"]["blur"]
    exact = KernelDensity(bandwidth=blur * np.sqrt(2 * 2)).fit(train.x)
    np.testing.assert_allclose(plain.blurred_kernels(train, train, 0).score(rows), exact.score_samples(rows.x))


def test_with_classes_each_row_is_scored_by_the_fit_to_its_own_class() -> None:
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 2, 600)
    train = with_classes(rng.normal(size=(600, 2)) + 50.0 * classes[:, None], classes, 3)
    fitted = by_class(plain.gaussian)(train, train, 0)
    for index in (0, 1):
        own = train.x[classes == index]
        exact = stats.multivariate_normal(own.mean(axis=0), np.cov(own.T, ddof=0)).logpdf(own)
        np.testing.assert_allclose(fitted.score(train)[classes == index], exact, atol=1e-4)
        assert fitted.chosen["classes"][index]["n_fit_rows"] == len(own)
    assert np.isnan(fitted.score(with_classes(train.x[:3], np.array([2, 2, 2]), 3))).all()
    # The control: without classes one Gaussian spans both.
    assert by_class(plain.gaussian)(Rows(train.x), Rows(train.x), 0).score(Rows(train.x)).mean() < exact.mean() - 1.0


@pytest.mark.parametrize("name", [*DENSITIES, *DETECTORS])
def test_outliers_are_found_and_a_class_may_have_one_training_row(name: str) -> None:
    fit = {**DENSITIES, **DETECTORS}[name]
    far = Rows(np.full((5, 2), [12.0, -12.0]))
    fitted = fit(normal(300, 0), normal(60, 1), 0)
    assert fitted.score(far).max() < np.quantile(fitted.score(normal(100, 2)), 0.05)
    one = with_classes(normal(51, 0).x, np.arange(51) // 50)
    single = by_class(fit)(one, one, 0)
    assert np.isfinite(single.score(one)).all()
    assert single.chosen["classes"][1]["n_fit_rows"] == single.chosen["classes"][1]["n_train_rows"] == 1


def test_large_tables_are_thinned_and_extreme_rows_have_no_density(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "KERNEL_MOST_ROWS", 100)
    monkeypatch.setattr(plain, "MOST_ROWS", 150)
    train = _two_modes(300)
    for name, n_rows in (("kernel_density", 100), ("gaussian_mixture", 150), ("gaussian", 300)):
        chosen = by_class(DENSITIES[name])(train, train, 0).chosen
        assert (chosen["n_fit_rows"], chosen["n_train_rows"]) == (n_rows, 300)
    assert not np.isfinite(by_class(plain.gaussian)(train, train, 0).score(Rows(np.full((1, 2), 1e200)))).any()


def test_states_are_saved_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(plain, "time", SimpleNamespace(monotonic=lambda: now))
    state = plain.KeptState(StoppingKeeper(), "settings", normal(5, 1))
    for now, is_last, saved in ((9.0, False, None), (11.0, False, 11.0), (20.0, False, 11.0), (20.5, True, 20.5)):
        state.write(partial(dict, now=np.array(now)), is_last=is_last)
        assert (state.read() or {}).get("now") == saved
    plain.KeptState(None, "settings").write(lambda: pytest.fail("nobody asked for it"), is_last=True)
