"""The estimator keeps to scikit-learn's grammar. Training and engine are stand-ins: what they compute is not asked."""

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import fake_engine
from bayesnde_cli import BayesNDE, UnreliableDensity
from bayesnde_cli import estimator as estimators
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.stages import scoring, training
from bayesnde_cli.stages.prepare import survey

IN_ITS_BLOCK = "the random numbers of a row's Monte-Carlo estimate depend on its place among the rows"
SMALL = {"density.block_rows": 8, "density.draws": 4, "density.chains": 2}


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    def refined(layout: RunLayout, *_: Any, **__: Any) -> None:
        fake_engine.pretend_refined(layout.root)

    monkeypatch.setattr(training, "run_warmstart", lambda *_, **__: None)
    monkeypatch.setattr(training, "run_refine", refined)
    monkeypatch.setattr(scoring, "open_engine", scoring.open_engine)  # to be put back
    fake_engine.install()


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(80, 3))


def doubted(call: Callable, *args: Any, **kwargs: Any) -> Any:
    """The result of a call; the stand-in doubts a fifth of the rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreliableDensity)
        return call(*args, **kwargs)


@pytest.mark.filterwarnings("ignore")  # rows that repeat, columns that depend on one another, doubtful densities
@parametrize_with_checks(
    [BayesNDE(settings=SMALL)],
    expected_failed_checks=lambda _: {
        "check_methods_subset_invariance": IN_ITS_BLOCK,
        "check_methods_sample_order_invariance": IN_ITS_BLOCK,
    },
)
def test_scikit_learns_checks(estimator: BayesNDE, check: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    # The checks fit to 10 rows and more, the tool to 50 and more.
    monkeypatch.setattr(estimators, "MIN_ROWS", 2)
    monkeypatch.setattr(survey, "MIN_ROWS", 2)
    check(estimator)


def test_fewer_than_fifty_rows_are_refused(rows: np.ndarray) -> None:
    with pytest.raises(ValueError, match="minimum of 50 is required"):
        BayesNDE().fit(rows[:49])
    with pytest.raises(ValueError, match="a density cannot be fitted to 49 rows"):
        BayesNDE().fit(pd.DataFrame(rows[:49]))


def test_unknown_settings_and_missing_cells_are_value_errors_with_a_way_out(rows: np.ndarray) -> None:
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        BayesNDE(settings={"refine.epoch": 3}).fit(rows)
    rows[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        BayesNDE().fit(rows)
    assert BayesNDE(settings={"prepare.missing": "drop"}).fit(rows).n_features_in_ == 3


def test_a_row_with_missing_cells_is_scored(rows: np.ndarray) -> None:
    model = BayesNDE(settings=SMALL).fit(rows)
    rows[0, 1] = np.nan
    assert doubted(model.density_table, rows)["n_observed"].to_pylist()[:2] == [2, 3]
    assert doubted(model.score, rows) == pytest.approx(np.mean(doubted(model.score_samples, rows)[1:]))
    with pytest.raises(ValueError, match="every row has missing cells"):
        doubted(model.score, rows[:1])


def test_doubtful_rows_are_counted_in_a_warning(rows: np.ndarray) -> None:
    model = BayesNDE(settings=SMALL).fit(rows)
    with pytest.warns(UnreliableDensity, match="of 80 log-densities cannot be relied on"):
        log_density, se = model.score_samples(rows, return_se=True)
    assert log_density.shape == se.shape == (80,)
    assert doubted(model.score, rows) == pytest.approx(log_density.mean())


def test_an_engine_is_opened_once(rows: np.ndarray) -> None:
    opened = fake_engine.install()
    model = BayesNDE(settings=SMALL).fit(rows)
    doubted(model.score_samples, rows)
    doubted(model.score_samples, rows[:20])
    assert len(opened) == 1
    doubted(BayesNDE(settings=SMALL).fit(rows).score_samples, rows)
    assert len(opened) == 2


@pytest.mark.parametrize("module", [pd, pl])
def test_frames_may_hold_words_and_classes_are_a_column(module: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = [["red", "green"][i] for i in rng.integers(0, 2, 120)]
    frame = module.DataFrame({"size": rng.normal(size=120), "colour": words})
    kinds = ["uv"[i] for i in rng.integers(0, 2, 120)]
    model = BayesNDE(tmp_path / "run", conditional=True, settings=SMALL).fit(frame, kinds)
    assert list(model.feature_names_in_) == ["size", "colour"]
    assert list(model.classes_) == ["u", "v"]
    u, v = (doubted(model.score_samples, frame, [kind] * 120) for kind in "uv")
    assert np.all(u != v)
    with pytest.raises(ValueError, match="needs y"):
        model.score_samples(frame)
    with pytest.raises(ValueError, match="120 rows, y has 3 classes"):
        model.score_samples(frame, ["u", "v", "u"])
    assert np.array_equal(
        u, doubted(BayesNDE.load(tmp_path / "run").set_params(settings=SMALL).score_samples, frame, ["u"] * 120)
    )


def test_a_column_called_like_the_classes_is_refused() -> None:
    frame = pd.DataFrame({"y": np.arange(60.0), "b": np.arange(60.0) ** 2})
    with pytest.raises(ValueError, match="rename or remove"):
        BayesNDE(conditional=True).fit(frame, [0, 1] * 30)


def test_the_run_of_another_table_is_not_overwritten(rows: np.ndarray, tmp_path: Path) -> None:
    model = BayesNDE(tmp_path / "run", settings=SMALL).fit(rows)
    before = doubted(model.score_samples, rows)
    with pytest.raises(Exception, match="restart"):
        BayesNDE(tmp_path / "run", settings=SMALL).fit(rows + 1.0)
    assert np.array_equal(doubted(model.score_samples, rows), before)


def test_a_temporary_run_goes_with_its_estimator_and_travels_with_copies(rows: np.ndarray, tmp_path: Path) -> None:
    model = BayesNDE(settings=SMALL).fit(rows)
    before, folder = doubted(model.score_samples, rows), model.run_
    packed, twin = pickle.dumps(model), copy.deepcopy(model)
    model.save(tmp_path / "kept" / "run")
    with pytest.raises(FileExistsError, match="another place"):
        model.save(tmp_path / "kept" / "run")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["run"]
    del model
    assert not folder.exists()
    loaded = BayesNDE.load(tmp_path / "kept" / "run").set_params(settings=SMALL)
    for other in (twin, pickle.loads(packed), loaded):
        assert other.run_ != folder
        assert np.array_equal(doubted(other.score_samples, rows), before)


def test_a_folder_without_a_fitted_model_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="bayesnde"):
        BayesNDE.load(tmp_path)


def test_the_package_has_no_other_names() -> None:
    import bayesnde_cli

    with pytest.raises(AttributeError, match="no attribute 'BayesND'"):
        bayesnde_cli.BayesND  # noqa: B018
