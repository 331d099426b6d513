"""The estimator keeps to scikit-learn's grammar. Training and engine are stand-ins: what they compute is not asked."""

import copy
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import fake_engine
from bayesnde_cli import estimator as estimators
from bayesnde_cli.estimator import BayesNDE, UnreliableDensity
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.stages import loading
from bayesnde_cli.stages import train as training
from bayesnde_cli.tables import survey

IN_ITS_BLOCK = "the random numbers of a row's Monte-Carlo estimate depend on its place among the rows"
SMALL = {"prepare.scale": "standard", "density.block_rows": 8, "density.draws": 4, "density.chains": 1}


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    def refined(layout: RunLayout, *_: Any, **__: Any) -> None:
        fake_engine.pretend_refined(layout.root)

    monkeypatch.setattr(training, "run_warmstart", lambda *_, **__: None)
    monkeypatch.setattr(training, "run_refine", refined)
    monkeypatch.setattr(loading, "open_engine", loading.open_engine)  # to be put back
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
    with pytest.raises(ValueError, match="did you mean 'epochs'") as unknown:
        BayesNDE(settings={"refine.epoch": 3}).fit(rows)
    assert str(unknown.value).startswith("settings has an unknown setting 'refine.epoch'\n")
    wrong: list[Any] = [{"epochs": 3}, ["refine.epochs=3"]]
    for settings in wrong:
        with pytest.raises(ValueError, match="settings must map") as refused:
            BayesNDE(settings=settings).fit(rows)
        assert str(refused.value) == (
            f'settings must map "stage.key" to a value\n  found: {settings!r}\n'
            'hint: for instance settings={"refine.epochs": 50}'
        )
    rows[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        BayesNDE().fit(rows)
    assert BayesNDE(settings={"prepare.missing": "drop"}).fit(rows).n_features_in_ == 3


def test_rows_are_scored_with_missing_cells_doubts_and_other_settings(rows: np.ndarray) -> None:
    opened = fake_engine.install()
    model = BayesNDE(settings=SMALL).fit(rows)
    with pytest.warns(UnreliableDensity, match="of 80 log-densities are not reliable"):
        log_density, se = model.score_samples(rows, return_se=True)
    assert log_density.shape == se.shape == (80,)
    assert doubted(model.score, rows) == pytest.approx(log_density.mean())
    gaps = rows[:20].copy()
    gaps[0, 1] = np.nan
    assert model.density_table(gaps)["n_observed"].to_pylist()[:2] == [2, 3]
    assert doubted(model.score, gaps) == pytest.approx(np.mean(doubted(model.score_samples, gaps)[1:]))
    with pytest.raises(ValueError, match="every row has missing cells"):
        doubted(model.score, gaps[:1])
    assert len(opened) == 1  # an engine is opened once
    model.set_params(settings={**SMALL, "density.draws": 5})
    assert np.all(doubted(model.score_samples, rows[:20]) != log_density[:20])
    assert len(opened) == 2
    fake_engine.install(loses_first=True)
    lossy = copy.deepcopy(model).set_params(settings=SMALL)
    lost = doubted(lossy.score_samples, rows[:30])
    assert np.isnan(lost).tolist() == [index % 8 == 0 for index in range(30)]  # the first of each block
    assert doubted(lossy.score, rows[:30]) == pytest.approx(np.nanmean(lost))
    assert np.isnan(doubted(lossy.score, rows[:1]))


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
    with pytest.raises(ValueError, match="prepare was made with other settings or data") as refused:
        BayesNDE(tmp_path / "run", settings=SMALL).fit(rows + 1.0)
    assert str(refused.value).endswith("\nhint: give another directory as `run`, or remove this one to fit again")
    assert np.array_equal(doubted(model.score_samples, rows), before)


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_columns_go_by_their_names_or_by_their_position(rows: np.ndarray) -> None:
    for first in (np.asarray, pd.DataFrame):  # a frame of an array has the names 0, 1, 2
        model = BayesNDE(settings=SMALL).fit(first(rows))
        expected = doubted(model.score_samples, rows[:9])
        for names in (None, ["u", "v", "w"]):
            assert np.array_equal(doubted(model.score_samples, pd.DataFrame(rows[:9], columns=names)), expected)
        if first is np.asarray:
            frame = pd.DataFrame(rows[:9], columns=["c1", "c2", "c3"])[["c3", "c1", "c2"]]
            assert np.array_equal(doubted(model.score_samples, frame), expected)


@pytest.mark.parametrize(
    ("classes", "spelled", "dtype"),
    [([False, True], ["false", "true"], "str"), ([1.0, 2.0], [1, 2], "int64"), ([3, 12], [3, 12], "int64")],
)
def test_classes_of_any_type_can_be_asked_for(
    classes: list, spelled: list, dtype: str, rows: np.ndarray, linear: list
) -> None:
    fake_engine.install()
    model = BayesNDE(conditional=True, settings=SMALL).fit(rows, np.array(classes)[np.arange(80) % 2])
    assert model.classes_.tolist() == spelled
    assert np.issubdtype(model.classes_.dtype, np.dtype(dtype))
    for condition, word in zip([*classes, *model.classes_], 2 * spelled, strict=True):
        assert set(model.sample(4, condition=condition)[1]) == {word}
        doubted(model.score_samples, rows[:3], [condition] * 3)


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_a_loaded_run_with_words_and_no_header_gives_data_frames(
    tmp_path: Path, bayesnde: Callable, linear: list
) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{rng.normal()},{rng.normal()},{'red' if rng.random() < 0.5 else 'green'}" for _ in range(120)]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    assert bayesnde("prepare", tmp_path / "d.csv", "--run", tmp_path / "run").code == 0
    fake_engine.pretend_refined(tmp_path / "run")
    model = BayesNDE.load(tmp_path / "run").set_params(settings=SMALL)
    made = model.sample(30)
    assert isinstance(made, pd.DataFrame)
    assert set(made["c3"]) == {"red", "green"}
    fake_engine.install()
    expected = doubted(model.score_samples, made)
    renamed = made.rename(columns={"c1": "x", "c2": "y", "c3": "colour"})
    assert np.array_equal(doubted(model.score_samples, renamed), expected)


def test_without_pandas_a_loaded_run_gives_arrow_tables(
    fitted: Path, linear: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    model = BayesNDE.load(fitted)
    made, classes = model.sample(5)
    assert isinstance(made, pa.Table)
    assert (made.column_names, made.num_rows) == (["a", "b", "n"], 5)
    fake_engine.install()
    model = BayesNDE.load(shutil.copytree(fitted, tmp_path / "run")).set_params(settings=SMALL)
    assert np.isfinite(doubted(model.score_samples, made, classes)).all()


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
