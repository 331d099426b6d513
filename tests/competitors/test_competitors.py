"""How competitors are chosen and compared: the same rows, the better scaling, and evaluated rows without a say."""

import numpy as np
import pytest
from scipy import stats

from bayesnde_cli.competitors import (
    DENSITIES,
    DETECTORS,
    PLAIN,
    Competitor,
    Method,
    Tables,
    fit_competitor,
    make_methods,
)
from bayesnde_cli.competitors.plain import Fit, Fitted
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import NEURAL_BASELINES
from normal_rows import normal, with_classes

TABLES = Tables(normal(300, 1), normal(60, 2), normal(40, 3))


def _log_normal_spaces(n: int = 500) -> dict[str, Tables]:
    """Log-normal columns: as in the file, and their logarithms, which are normal."""
    parts = [np.random.default_rng(seed).normal(size=(size, 2)) for seed, size in ((1, n), (2, 400), (3, 400))]
    logs = Tables(*(Rows(z, log_jacobian=-z.sum(axis=1)) for z in parts))
    return {"file": Tables(*(Rows(np.exp(z)) for z in parts)), "model": logs}


@pytest.mark.parametrize("name", DENSITIES)
def test_the_better_scaling_is_chosen_and_its_jacobian_counted(name: str) -> None:
    spaces = _log_normal_spaces()
    found = fit_competitor(name, spaces, seed=0, methods=PLAIN)
    assert found.chosen["scaling"] == "model"
    truth = stats.lognorm.logpdf(spaces["file"].evaluated.x, 1.0).sum(axis=1).mean()
    assert found.log_density.mean() == pytest.approx(truth, abs=0.15)
    # The controls: without the Jacobian the mean is off; normal columns are left as they are.
    bare = Tables(*(Rows(rows.x) for rows in spaces["model"]))
    assert abs(fit_competitor(name, {"model": bare}, seed=0, methods=PLAIN).log_density.mean() - truth) > 0.01
    assert np.std(spaces["model"].evaluated.log_jacobian) > 1.0
    squeezed = Tables(*(Rows(np.exp(rows.x), log_jacobian=rows.x.sum(axis=1)) for rows in bare))
    other = fit_competitor(name, {"file": bare, "model": squeezed}, seed=0, methods=PLAIN)
    assert other.chosen["scaling"] == "file"


@pytest.mark.parametrize("name", DENSITIES)
def test_evaluated_rows_have_no_say_and_other_units_shift_the_log_density(name: str) -> None:
    def fit(tables: Tables) -> Competitor:
        return fit_competitor(name, {"file": tables}, seed=3, methods=PLAIN)

    first = fit(TABLES)
    others = Rows(np.concatenate([TABLES.evaluated.x, 30.0 + TABLES.evaluated.x]))
    second = fit(TABLES._replace(evaluated=others))
    assert first.chosen == second.chosen
    np.testing.assert_allclose(first.log_density, second.log_density[:40])
    wide = fit(Tables(*(Rows(1000.0 * rows.x) for rows in TABLES)))
    np.testing.assert_allclose(first.log_density - wide.log_density, 2 * np.log(1000.0), atol=1e-6)
    assert first.chosen == wide.chosen
    # The control: validation rows have a say.
    if name == "kernel_density":
        assert fit(TABLES._replace(validation=Rows(3.0 * TABLES.validation.x))).chosen != first.chosen


def test_a_short_fit_chooses_the_space_and_the_full_one_follows_there_once() -> None:
    calls = []

    def fit(kind: str) -> Fit:
        def fitted(train: Rows, validation: Rows, seed: int) -> Fitted:
            calls.append(kind)
            return Fitted(lambda rows: -0.5 * (rows.x**2).sum(axis=1), {"kind": kind})

        return fitted

    spaces = _log_normal_spaces(100)
    found = fit_competitor("own", spaces, seed=0, methods={"own": Method(fit("full"), fit("short"))})
    assert (calls, found.chosen["kind"]) == (["short", "short", "full"], "full")
    calls.clear()
    fit_competitor("own", spaces, seed=0, methods={"own": Method(fit("full"))})
    assert calls == ["full", "full"]


def test_detectors_have_a_score_in_the_first_space() -> None:
    spaces = _log_normal_spaces(200)
    for name in (*DETECTORS, "distance"):
        found = fit_competitor(name, spaces, seed=0, methods=make_methods())
        assert (found.is_density, found.chosen["scaling"], found.log_density.shape) == (False, "file", (400,))
    train, rows = spaces["file"].train.x, spaces["file"].evaluated.x  # of the distance
    exact = -(((rows - train.mean(axis=0)) / train.std(axis=0)) ** 2).sum(axis=1)
    np.testing.assert_allclose(found.log_density, exact)


def test_classes_have_their_names_and_a_named_mixture_has_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesnde_cli.competitors.plain.MOST_ROWS", 100)
    rows = with_classes(TABLES.train.x, np.arange(300) % 2)
    tables = {"file": Tables(rows, rows, rows)}
    found = fit_competitor("gaussian", tables, seed=0, methods=PLAIN, class_names=("u", "v"))
    assert set(found.chosen["classes"]) == {"u", "v"}
    for methods, n_rows in ((PLAIN, 100), (make_methods(), 300)):
        one = fit_competitor("gaussian_mixture", {"file": TABLES}, seed=0, methods=methods)
        assert one.chosen["n_fit_rows"] == n_rows
    named = {*DENSITIES, *DETECTORS, *NEURAL_BASELINES, "roundtrip", "distance", "blurred_kernels"}
    assert set(make_methods()) == named
