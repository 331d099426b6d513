"""Baselines against closed forms and scikit-learn; and that evaluated rows have no say in them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.neighbors import KernelDensity

from bayesnde_cli.config import read_preset
from bayesnde_cli.evaluation.baselines import (
    COMPETITORS,
    DENSITIES,
    Part,
    Parts,
    competitor,
    density_figures,
    detector_figures,
)
from bayesnde_cli.evaluation.baselines.kernel import BANDWIDTHS, blurred_kernels, kernel_density, log_kernel_density
from bayesnde_cli.evaluation.baselines.mixture import gaussian_mixture

# Columns of very different units: the Jacobian counts.
UNITS = np.array([100.0, 0.1, 1.0])
COVARIANCE = np.array([[1.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 1.0]]) * np.outer(UNITS, UNITS)
MEAN = np.array([500.0, 3.0, -1.0])


def _parts(draw, n: int = 3000) -> Parts:
    rng = np.random.default_rng(0)
    train, validation, evaluated = (Part(draw(rng, size)) for size in (n, n // 4, n // 4))
    return Parts(train, validation, evaluated)


def _normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.multivariate_normal(MEAN, COVARIANCE, n)


def _two_heaps(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=(n, 2)) * 0.3 + np.where(rng.uniform(size=(n, 1)) < 0.5, -2.0, 2.0)


def _log_two_heaps(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(*(stats.norm(place, 0.3).logpdf(x).sum(axis=1) + np.log(0.5) for place in (-2.0, 2.0)))


def _found(name: str, parts: Parts, log_density: np.ndarray | None = None) -> dict:
    given = np.zeros(len(parts.evaluated.cells)) if log_density is None else log_density
    return density_figures(name, parts, given, None, seed=3)


def test_the_gaussian_is_scipys_in_the_units_of_the_file() -> None:
    parts = _parts(_normal)
    train = parts.train.cells
    exact = stats.multivariate_normal(train.mean(axis=0), np.cov(train.T, ddof=0))
    exact = exact.logpdf(parts.evaluated.cells)
    found = _found("gaussian", parts, exact)
    assert found["mean_log_density"] == pytest.approx(exact.mean(), abs=1e-4)
    assert found["mean_log_density_se"] == pytest.approx(exact.std(ddof=1) / np.sqrt(len(exact)), rel=1e-4)
    assert abs(found["gain"]) < 1e-4  # row by row, too
    assert found["gain_se"] < 1e-4


@pytest.mark.parametrize("name", DENSITIES)
def test_other_units_shift_the_log_density_by_the_log_of_the_factor(name: str) -> None:
    parts = _parts(_two_heaps, 400)
    wide = [Part(1000.0 * part.cells) for part in (parts.train, parts.validation, parts.evaluated)]
    before, after = _found(name, parts), _found(name, Parts(*wide))
    shift = before["mean_log_density"] - after["mean_log_density"]
    assert shift == pytest.approx(2 * np.log(1000.0), abs=1e-6)
    assert before["chosen"] == after["chosen"]


def test_the_mixture_finds_the_heaps_that_a_gaussian_cannot() -> None:
    parts = _parts(_two_heaps)
    truth = _log_two_heaps(parts.evaluated.cells)
    mixture, gaussian = _found("gaussian_mixture", parts, truth), _found("gaussian", parts, truth)
    assert mixture["chosen"]["components"] >= 2
    assert mixture["gain"] == pytest.approx(0.0, abs=0.02)
    assert gaussian["gain"] > 0.5


def test_of_mixtures_the_validation_rows_choose() -> None:
    """One heap of validation rows in one place: what suits them is not what suits the training rows."""
    rng = np.random.default_rng(2)
    train = np.concatenate([rng.normal(size=(200, 2)), rng.normal(size=(200, 2)) * 0.1 + 5.0])
    many = gaussian_mixture(train, train[::7], 0)
    one = gaussian_mixture(train, rng.normal(size=(50, 2)) * 3.0 + 2.5, 0)
    assert one.chosen["components"] < many.chosen["components"]


def test_the_kernel_density_is_scikit_learns_of_the_chosen_width() -> None:
    rng = np.random.default_rng(0)
    train, validation, rows = (_two_heaps(rng, size) for size in (400, 100, 700))
    fitted = kernel_density(train, validation, 0)
    width = fitted.chosen["bandwidth"]
    exact = KernelDensity(bandwidth=width).fit(train)
    assert np.allclose(fitted.score(rows), exact.score_samples(rows), atol=1e-9)
    judged = [KernelDensity(bandwidth=h).fit(train).score(validation) for h in BANDWIDTHS]
    assert width == BANDWIDTHS[int(np.argmax(judged))]
    assert BANDWIDTHS[0] < width < BANDWIDTHS[-1]


def test_a_kernel_density_integrates_to_one() -> None:
    kernels = np.array([[-1.0], [0.5], [0.6]])
    grid = np.linspace(-8.0, 8.0, 4001)[:, None]
    for h, log_density in zip((0.1, 0.5), log_kernel_density(grid, kernels, (0.1, 0.5)), strict=True):
        assert np.trapezoid(np.exp(log_density), grid[:, 0]) == pytest.approx(1.0, abs=1e-6), h


@pytest.mark.parametrize("name", DENSITIES)
def test_evaluated_rows_have_no_say_in_what_is_fitted_or_chosen(name: str) -> None:
    parts = _parts(_two_heaps, 400)
    evaluated = parts.evaluated.cells
    before = _found(name, parts)
    order = np.random.default_rng(1).permutation(len(evaluated))
    permuted = _found(name, replace(parts, evaluated=Part(evaluated[order])))
    assert permuted["chosen"] == before["chosen"]
    assert permuted["mean_log_density"] == pytest.approx(before["mean_log_density"], rel=1e-12)
    # Some rows more, or others, change nothing in the density of a row.
    others = np.concatenate([evaluated[:50], 30.0 + evaluated])
    other = _found(name, replace(parts, evaluated=Part(others)))
    first = _found(name, replace(parts, evaluated=Part(evaluated[:50])))
    assert other["chosen"] == first["chosen"] == before["chosen"]
    assert other["mean_log_density"] < first["mean_log_density"] - 10.0


def test_the_control_of_it_validation_rows_do_have_a_say() -> None:
    parts = _parts(_two_heaps, 400)
    other = replace(parts, validation=Part(3.0 * parts.validation.cells))
    assert _found("kernel_density", parts)["chosen"] != _found("kernel_density", other)["chosen"]


def test_with_classes_each_row_is_scored_by_a_fit_to_its_own_class() -> None:
    rng = np.random.default_rng(0)

    def part(n: int) -> Part:
        classes = rng.integers(0, 2, n)
        return Part(rng.normal(size=(n, 2)) + 50.0 * classes[:, None], classes)

    train, validation, evaluated = part(600), part(100), part(100)
    parts = Parts(train, validation, evaluated, ("u", "v"))
    exact = np.empty(100)
    for index in (0, 1):
        rows = train.of_class(index)
        gaussian = stats.multivariate_normal(rows.mean(axis=0), np.cov(rows.T, ddof=0))
        exact[evaluated.classes == index] = gaussian.logpdf(evaluated.of_class(index))
    found = _found("gaussian", parts, exact)
    assert abs(found["gain"]) < 0.01
    assert set(found["chosen"]) == {"u", "v"}
    assert found["chosen"]["u"]["n_fit_rows"] == (train.classes == 0).sum()
    # The control: without classes one Gaussian spans both heaps.
    plain = Parts(*(Part(each.cells) for each in (train, validation, evaluated)))
    assert _found("gaussian", plain, exact)["gain"] > 1.0


@pytest.mark.parametrize("name", ["one_class_svm", "isolation_forest", *DENSITIES])
def test_outliers_far_from_the_training_rows_are_found(name: str) -> None:
    parts = _parts(_normal, 800)
    is_outlier = np.arange(200) < 10
    cells = np.where(is_outlier[:, None], MEAN + 12.0 * UNITS, parts.evaluated.cells)
    parts = replace(parts, evaluated=Part(cells))
    shuffled = np.random.default_rng(0).permutation(is_outlier)

    def auroc(label: np.ndarray) -> float:
        if name in DENSITIES:
            return density_figures(name, parts, np.zeros(200), label, seed=0)["outliers"]["auroc"]
        return detector_figures(name, parts, label, seed=0)["outliers"]["auroc"]

    assert auroc(is_outlier) > 0.98
    assert abs(auroc(shuffled) - 0.5) < 0.35  # the control: 10 labels at random


def test_large_tables_are_thinned_and_the_figures_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesnde_cli.evaluation.baselines import kernel, mixture

    monkeypatch.setattr(kernel, "MOST_ROWS", 100)
    monkeypatch.setattr(mixture, "MOST_ROWS", 150)
    parts = _parts(_two_heaps, 400)
    assert _found("kernel_density", parts)["chosen"]["n_fit_rows"] == 100
    assert _found("gaussian_mixture", parts)["chosen"]["n_fit_rows"] == 150
    assert _found("gaussian", parts)["chosen"]["n_fit_rows"] == 400
    assert _found("kernel_density", parts)["chosen"]["n_train_rows"] == 400


def test_rows_beyond_all_measure_are_counted_and_left_out() -> None:
    parts = _parts(_two_heaps, 400)
    cells = parts.evaluated.cells.copy()
    cells[0] = 1e200
    found = _found("gaussian", replace(parts, evaluated=Part(cells)))
    assert found["n_not_finite"] == 1
    assert np.isfinite(found["mean_log_density"])


def test_means_are_over_the_rows_where_both_densities_are_finite() -> None:
    parts = _parts(_two_heaps, 400)
    cells = parts.evaluated.cells.copy()
    cells[0] = 1e200  # beyond the Gaussian
    parts = replace(parts, evaluated=Part(cells))
    ours = np.linspace(-5.0, 0.0, len(cells))
    ours[1:4] = np.nan
    kept = replace(parts, evaluated=Part(cells[4:]))
    found, wanted = _found("gaussian", parts, ours), _found("gaussian", kept, ours[4:])
    for name in ("n", "mean_log_density", "mean_log_density_se", "gain", "gain_se"):
        assert found[name] == pytest.approx(wanted[name]), name
    assert (found["n"], found["n_not_finite"]) == (len(cells) - 4, 1)
    assert found["gain"] == pytest.approx(ours[4:].mean() - found["mean_log_density"])


@pytest.mark.parametrize("name", [*DENSITIES, "one_class_svm", "isolation_forest"])
def test_a_class_of_one_training_row_has_a_baseline(name: str) -> None:
    rng = np.random.default_rng(0)

    def part(n_first: int, n_second: int) -> Part:
        return Part(rng.normal(size=(n_first + n_second, 2)), np.repeat([0, 1], [n_first, n_second]))

    parts = Parts(part(50, 1), part(10, 2), part(10, 2), ("many", "one"))
    if name in DENSITIES:
        found = density_figures(name, parts, np.zeros(12), None, seed=0)
        assert np.isfinite(found["mean_log_density"])
    else:
        found = detector_figures(name, parts, np.arange(12) < 3, seed=0)
    assert found["chosen"]["one"]["n_fit_rows"] == found["chosen"]["one"]["n_train_rows"] == 1


def test_the_distance_is_that_from_the_mean_of_standardised_columns() -> None:
    parts = _parts(_normal)
    found = competitor("distance", {"file": parts}, seed=0)
    train, rows = parts.train.cells, parts.evaluated.cells
    np.testing.assert_allclose(found.log_density, -(((rows - train.mean(axis=0)) / train.std(axis=0)) ** 2).sum(axis=1))
    assert found.validation is None


def test_blurred_kernels_are_as_wide_as_the_preset_blurs_a_model() -> None:
    rows = _normal(np.random.default_rng(0), 200)
    width = read_preset("outliers")["density"]["blur"] * np.sqrt(2 * rows.shape[1])
    found = blurred_kernels(rows, rows, 0)
    np.testing.assert_allclose(found.score(rows), KernelDensity(bandwidth=width).fit(rows).score_samples(rows))


def test_as_a_competitor_a_mixture_has_all_rows_and_more_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesnde_cli.evaluation.baselines.mixture.MOST_ROWS", 100)
    parts = _parts(_two_heaps, 400)
    assert competitor("gaussian_mixture", {"file": parts}, seed=0).chosen["n_fit_rows"] == 400
    assert _found("gaussian_mixture", parts)["chosen"]["n_fit_rows"] == 100
    assert set(COMPETITORS) >= {*DENSITIES, "distance", "blurred_kernels"}
