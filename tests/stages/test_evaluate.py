"""`evaluate` with stand-ins for engine and model: what the document says of rows whose figures can be worked out."""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

import fake_engine
import fake_model
from bayesnde_cli.inference.verdicts import VERDICTS
from bayesnde_cli.stages.evaluate import metrics
from bayesnde_cli.stages.evaluate.outcome import _by_class
from bayesnde_cli.stages.evaluate.rows import Scores, read_scores
from bayesnde_cli.stages.scoring.job import Job
from bayesnde_cli.training.diagnostics import DIAGNOSTICS
from scoring_runs import FEW, SMALL, other_set

ALL = [*FEW, "--baselines"]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an outlier label, without a condition. Not to be written to."""
    from bayesnde_cli.cli.main import run

    folder = tmp_path_factory.mktemp("labelled")
    rng = np.random.default_rng(0)
    is_outlier = rng.uniform(size=400) < 0.15
    x = rng.normal(size=(400, 3)) * np.where(is_outlier, 6.0, 1.0)[:, None]
    lines = [",".join(f"{cell:.6f}" for cell in row) + f",{int(bad)}" for row, bad in zip(x, is_outlier, strict=True)]
    (folder / "d.csv").write_text("a,b,c,bad\n" + "\n".join(lines) + "\n")
    options = ["--outlier-label", "bad", "--scale", "standard", "--run", str(folder / "run"), "-q"]
    assert run(["prepare", str(folder / "d.csv"), *options]) == 0
    fake_engine.pretend_refined(folder / "run")
    return folder / "run"


def _metrics(run: Path, set_name: str = "test") -> dict:
    return json.loads((run / f"evaluate/{set_name}/metrics.json").read_text())


def test_the_document_of_a_conditional_run_with_truth(bayesnde: Callable, scored: Path) -> None:
    outcome = bayesnde("evaluate", "--run", scored, *ALL)
    assert outcome.code == 0, outcome.err
    found = _metrics(scored)
    assert list(found) == sorted(
        ["schema", "schema_version", "run_id", "blur", "rows", "mean_log_density", "mean_log_density_se",
         "mean_log_density_mc_se", "mean_log_density_scaled", "mean_log_density_scaled_se",
         "bits_per_dimension", "bits_per_dimension_se", "classes",
         "truth", "outliers", "accuracy", "accuracy_se", "confusion_matrix", "generation", "typicality",
         "baselines", "reasons"]
    )  # fmt: skip
    assert (found["schema"], found["schema_version"]) == ("metrics", 1)
    table = pq.read_table(scored / "density/test/density.parquet")
    log_density, n = table["log_density"].to_numpy(), table.num_rows
    assert found["mean_log_density"] == pytest.approx(log_density.mean())
    assert found["mean_log_density_se"] == pytest.approx(log_density.std(ddof=1) / np.sqrt(n))
    assert found["mean_log_density_mc_se"] == pytest.approx(np.sqrt(np.sum(table["mc_se"].to_numpy() ** 2)) / n)
    assert found["mean_log_density_scaled"] == pytest.approx(table["log_density_scaled"].to_numpy().mean())
    truth = table["true_log_density"].to_numpy()
    assert found["truth"]["spearman"] == pytest.approx(stats.spearmanr(log_density, truth).statistic)
    classes = np.array(table["k"].to_pylist())
    for name in "uv":
        own = found["classes"][name]
        assert (own["n"], own["mean_log_density"]) == (
            (classes == name).sum(),
            pytest.approx(log_density[classes == name].mean()),
        )
    assert found["rows"]["n"] == n
    assert found["rows"]["n_reliable"] == sum(table["reliable"].to_pylist())
    assert sum(found["rows"]["verdicts"].values()) == found["rows"]["n_in_mean"] == n
    # Every verdict that the engine knows is there to be asked for.
    assert found["rows"]["verdicts"] == dict.fromkeys(VERDICTS, 0) | Counter(table["verdict"].to_pylist())
    assert found["outliers"] is None
    assert found["reasons"] == {
        "bits_per_dimension": "the rows are no images", "outliers": "the rows have no outlier label",
    }  # fmt: skip


def test_the_rows_are_on_record_by_their_cells(bayesnde: Callable, scored: Path) -> None:
    assert bayesnde("evaluate", "--run", scored, *FEW).code == 0
    test = pq.read_table(scored / "prepare/test.parquet")
    cells = np.stack([test[name].to_numpy().astype("<f8") for name in ("a", "b", "n")], axis=1)
    assert _metrics(scored)["rows"]["sha256"] == hashlib.sha256(cells.tobytes()).hexdigest()


def test_the_likeliest_class_is_found_by_the_engine(bayesnde: Callable, engines: list, scored: Path) -> None:
    """The stand-in's density falls by one with the class: the first class always wins."""
    assert bayesnde("evaluate", "--run", scored, *FEW).code == 0
    found, test = _metrics(scored), pq.read_table(scored / "prepare/test.parquet")
    n_first = test["k"].to_pylist().count("u")
    matrix = found["confusion_matrix"]
    assert found["accuracy"] == pytest.approx(n_first / test.num_rows)
    assert matrix["classes"] == ["u", "v"]
    assert matrix["counts"] == [[n_first, 0], [test.num_rows - n_first, 0]]
    assert engines[-1].config.escalations == 0
    assert engines[-1].config.block_rows == 8  # the settings of `density`
    n_last = 2 * (test.num_rows % 32)  # rows are looked at by 32, and go together with their classes
    assert engines[-1].n_real == [8] * (8 * (test.num_rows // 32) + n_last // 8) + [n_last % 8]


def test_of_many_classes_some_are_shown() -> None:
    figures = {"n": 2, "mean_log_density": -1.0, "mean_log_density_se": 0.5}
    table = _by_class({"classes": {f"c{index}": figures for index in range(500)}}).splitlines()
    assert len(table) == 22
    assert table[-1] == "… and 480 more classes in metrics.json"
    assert len(_by_class({"classes": dict.fromkeys("abc", figures)}).splitlines()) == 4


def test_of_a_large_table_some_rows_are_scored_under_every_class(
    bayesnde: Callable, engines: list, scored: Path
) -> None:
    assert bayesnde("evaluate", "--run", scored, *FEW, "--accuracy-rows", "10").code == 0
    assert _metrics(scored)["confusion_matrix"]["n"] == 10
    assert engines[-1].n_real == [8, 8, 4]
    assert bayesnde("evaluate", "--run", scored, *FEW, "--accuracy-rows", "0", "--restart").code == 0
    found = _metrics(scored)
    assert (found["accuracy"], found["confusion_matrix"]) == (None, None)
    assert found["reasons"]["accuracy"] == "not asked for"


def test_baselines_are_fitted_to_values_with_their_noise_in_the_units_of_the_file(
    bayesnde: Callable, scored: Path
) -> None:
    """A Gaussian for each class, from the prepared tables alone: the noise is taken out of x_scaled by its map."""
    from bayesnde_cli.artifacts.layout import RunLayout
    from bayesnde_cli.stages.reading import read_schema

    assert bayesnde("evaluate", "--run", scored, *ALL).code == 0
    maps = [feature.map for feature in read_schema(RunLayout(scored)).features]

    def rows(split: str) -> tuple[np.ndarray, np.ndarray]:
        table = pq.read_table(scored / f"prepare/{split}.parquet")
        x = np.array(table["x_scaled"].to_pylist())
        noisy = [column.inverse(u) for column, u in zip(maps, x.T, strict=True)]
        return np.stack(noisy, axis=1), np.array(table["k"].to_pylist())

    (train, train_class), (test, test_class) = rows("train"), rows("test")
    exact = np.empty(len(test))
    for name in "uv":
        own = train[train_class == name]
        gaussian = stats.multivariate_normal(own.mean(axis=0), np.cov(own.T, ddof=0))
        exact[test_class == name] = gaussian.logpdf(test[test_class == name])
    found = _metrics(scored)["baselines"]
    assert found["gaussian"]["mean_log_density"] == pytest.approx(exact.mean(), abs=1e-3)
    assert set(found) == {"gaussian", "gaussian_mixture", "gaussian_mixture_scaled", "kernel_density"}
    assert set(found["kernel_density"]["chosen"]) == {"u", "v"}
    assert found["gaussian"]["outliers"] is None


def test_generation_and_typicality_compare_rows_with_the_models_own(
    bayesnde: Callable, models: list, scored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaled columns are standard normal, and so are the rows of the stand-in; one that is shifted is flagged."""
    assert bayesnde("evaluate", "--run", scored, *FEW).code == 0
    right = _metrics(scored)
    assert set(DIAGNOSTICS) <= set(right["generation"])
    assert set(right["generation"]["classes"]) == {"u", "v"}
    assert right["typicality"]["verdict"] == "no difference found"
    of_itself = right["generation"]["of_itself"]
    assert set(of_itself) == set(DIAGNOSTICS)
    # The rows of the stand-in are as far from themselves as from rows of the same distribution.
    assert 0.3 * of_itself["ks"] < right["generation"]["ks"] < 3 * of_itself["ks"]
    assert right["typicality"]["simulated"]["n"] == 100
    fake_model.install(monkeypatch, fake_model.NormalModel(shift=1.5))
    assert bayesnde("evaluate", "--run", scored, *FEW, "--restart").code == 0
    shifted = _metrics(scored)
    assert shifted["typicality"]["verdict"].startswith("rows have lower density than the model's own rows")
    for name in ("ks", "marginal_wasserstein", "sliced_wasserstein", "rbf_mmd"):
        assert shifted["generation"][name] > 2 * right["generation"][name]
        assert shifted["generation"][name] > 2 * shifted["generation"]["of_itself"][name]


def test_outlier_labels_bring_figures_of_every_method(
    bayesnde: Callable, engines: list, models: list, labelled: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(labelled, tmp_path / "run")
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    outcome = bayesnde("evaluate", "--run", run, *ALL)
    assert outcome.code == 0, outcome.err
    found = _metrics(run)
    n_outliers = pq.read_table(run / "prepare/test.parquet")["bad"].to_pylist().count(1)
    assert found["outliers"]["n_outliers"] == n_outliers
    assert found["outliers"]["auroc"] > 0.9  # the stand-in's density falls with the squares of the cells
    assert set(found["baselines"]) == {"gaussian", "gaussian_mixture", "gaussian_mixture_scaled", "kernel_density",
                                       "one_class_svm", "isolation_forest"}  # fmt: skip
    for name, figures in found["baselines"].items():
        assert figures["outliers"]["auroc"] > 0.8, name
    assert "mean_log_density" not in found["baselines"]["isolation_forest"]
    assert (found["classes"], found["accuracy"]) == (None, None)
    # Scaled to mean 0 and s.d. 1, and back: the same mixture, but for the rounding to float32 on the way.
    two = [found["baselines"][name]["mean_log_density"] for name in ("gaussian_mixture", "gaussian_mixture_scaled")]
    assert two[0] == pytest.approx(two[1], abs=1e-3)
    assert f"precision@{n_outliers}  " in outcome.out


def test_a_blurred_density_is_compared_by_its_outliers_alone(
    bayesnde: Callable, engines: list, models: list, labelled: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(labelled, tmp_path / "run")
    assert bayesnde("density", "--run", run, "--blur", "0.5", *SMALL).code == 0
    outcome = bayesnde("evaluate", "--run", run, *ALL)
    assert outcome.code == 0, outcome.err
    found = _metrics(run)
    assert (found["blur"], found["truth"]) == (0.5, None)
    for name in ("gaussian", "kernel_density"):
        assert found["baselines"][name]["gain"] is None
        assert found["baselines"][name]["outliers"]["auroc"] > 0.8
    assert found["outliers"]["auroc"] > 0.9
    page = (run / "evaluate/test/report.html").read_text("utf-8")
    assert "The model was blurred, in every column by 0.5 of the typical distance of two rows." in page
    assert "Against validation rows" not in page


def test_rows_of_a_file_with_gaps_are_left_out_where_whole_rows_are_compared(
    bayesnde: Callable, scored: Path, tmp_path: Path
) -> None:
    (tmp_path / "gaps.csv").write_text("k,n,b,a\nu,3,1.5,0.25\nv,,2.5,\nu,,,\nu,4,0.5,-1.0\nv,2,1.5,-1.0\n")
    missing = bayesnde("evaluate", tmp_path / "gaps.csv", "--run", scored, *ALL)
    assert missing.code == 3
    assert bayesnde("density", tmp_path / "gaps.csv", "--run", scored, *SMALL).code == 0
    outcome = bayesnde("evaluate", tmp_path / "gaps.csv", "--run", scored, *ALL)
    assert outcome.code == 0, outcome.err
    found = _metrics(scored, other_set(scored))
    assert found["baselines"]["gaussian"]["n"] == 3
    assert "baselines" not in found["reasons"]
    assert (found["rows"]["n"], found["rows"]["n_incomplete"], found["rows"]["n_in_mean"]) == (5, 2, 3)
    density = pq.read_table(scored / "density" / other_set(scored) / "density.parquet").to_pylist()
    whole = [row for row in density if row["n_observed"] == 3]
    assert found["mean_log_density"] == pytest.approx(np.mean([row["log_density"] for row in whole]))
    in_class = [row["log_density"] for row in whole if row["k"] == "v"]
    assert found["classes"]["v"]["mean_log_density"] == pytest.approx(np.mean(in_class))
    assert (found["classes"]["u"]["n"], found["classes"]["v"]["n"]) == (2, 1)
    assert "left out of the mean: 2 rows with missing cells\n" in outcome.out
    assert found["typicality"]["rows"]["n"] == 3
    assert (found["confusion_matrix"]["n"], found["confusion_matrix"]["n_without_class"]) == (5, 1)  # without cells
    assert found["truth"] is None


def test_rows_with_gaps_enter_neither_truth_nor_outliers(
    bayesnde: Callable, engines: list, models: list, tmp_path: Path
) -> None:
    cells = np.random.default_rng(0).normal(size=(300, 3)).round(5)
    whole = [f"{a},{b},{c},{int(a > 1)},{-(a**2) - b**2 - c**2:.5f}" for a, b, c in cells]
    gaps = [f",{b},{c},1,{50 + b}" for _, b, c in cells[:40]]
    header = "a,b,c,bad,true_log_density"
    (tmp_path / "d.csv").write_text("\n".join([header, *whole]) + "\n")
    (tmp_path / "gaps.csv").write_text("\n".join([header, *whole[:40], *gaps]) + "\n")
    run = tmp_path / "run"
    assert bayesnde("prepare", tmp_path / "d.csv", "--outlier-label", "bad", "--run", run).code == 0
    fake_engine.pretend_refined(run)
    assert bayesnde("density", tmp_path / "gaps.csv", "--run", run, *SMALL).code == 0
    outcome = bayesnde("evaluate", tmp_path / "gaps.csv", "--run", run, *ALL, "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    table = pq.read_table(run / "density" / other_set(run) / "density.parquet").slice(0, 40)
    log_density, truth = (table[name].to_numpy() for name in ("log_density", "true_log_density"))
    n_outliers = table["bad"].to_pylist().count(1)
    assert (found["rows"]["n"], found["truth"]["n"], found["outliers"]["n"]) == (80, 40, 40)
    assert found["truth"]["spearman"] == pytest.approx(stats.spearmanr(log_density, truth).statistic)
    assert found["outliers"]["n_outliers"] == n_outliers
    for figures in found["baselines"].values():
        assert (figures["outliers"]["n"], figures["outliers"]["n_outliers"]) == (40, n_outliers)


def test_rows_of_a_file_that_are_all_gaps(bayesnde: Callable, scored: Path, tmp_path: Path) -> None:
    (tmp_path / "gaps.csv").write_text("k,n,b,a\nu,3,1.5,\nv,,2.5,1.0\n")
    assert bayesnde("density", tmp_path / "gaps.csv", "--run", scored, *SMALL).code == 0
    outcome = bayesnde("evaluate", tmp_path / "gaps.csv", "--run", scored, *ALL)
    assert outcome.code == 0, outcome.err
    found = _metrics(scored, other_set(scored))
    assert (found["generation"], found["typicality"], found["mean_log_density"]) == (None, None, None)
    assert found["reasons"]["mean_log_density"] == "every row has missing cells"
    assert found["reasons"]["baselines"] == "every row has missing cells"
    assert "no mean log-density: every row has missing cells\n" in outcome.out
    page = (scored / "evaluate" / other_set(scored) / "report.html").read_text()
    assert "every row has missing cells" in page
    assert found["reasons"]["typicality"] == "every row has missing cells"


def test_a_column_without_its_noise_has_no_baselines(
    bayesnde: Callable, engines: list, models: list, fitted: Path, tmp_path: Path
) -> None:
    data = json.loads((fitted / "prepare/manifest.json").read_text())["inputs"]["data-0"]["path"]
    options = ["--condition", "k", "--id", "name", "--dequantize", "none", "--run", tmp_path / "r"]
    assert bayesnde("prepare", data, *options).code == 0
    fake_engine.pretend_refined(tmp_path / "r")
    assert bayesnde("density", "--run", tmp_path / "r", *SMALL).code == 0
    assert bayesnde("evaluate", "--run", tmp_path / "r", *ALL).code == 0
    reason = _metrics(tmp_path / "r")["reasons"]["baselines"]
    assert reason == "column 'n' is lattice and without noise: it has no continuous density"


def test_rows_without_an_estimate_are_counted_and_the_rest_is_figures(
    bayesnde: Callable, engines: list, models: list, run: Path
) -> None:
    fake_engine.install(loses_first=True)
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    outcome = bayesnde("evaluate", "--run", run, *FEW)
    assert outcome.code == 0, outcome.err
    found = _metrics(run)
    assert found["rows"]["n_not_finite"] == 8
    log_density = pq.read_table(run / "density/test/density.parquet")["log_density"].to_numpy()
    assert found["mean_log_density"] == pytest.approx(np.nanmean(log_density))
    # The first row and class of each block: of 32 rows the same four of either class, of the last 30 others.
    assert found["confusion_matrix"]["n_without_class"] == 4 + 8
    assert found["rows"]["n_in_mean"] == sum(item["n"] for item in found["classes"].values()) == len(log_density) - 8
    assert "left out: 8 rows without a finite log-density\n" in outcome.out


def test_errors_above_a_nat_are_counted_where_nothing_else_is_wrong(
    bayesnde: Callable, scored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wide(job: Job) -> Scores:
        scores = read_scores(job)
        verdict, mc_se = np.full(len(scores.verdict), "error above target", object), np.full(len(scores.mc_se), 0.9)
        verdict[0], mc_se[:3] = "chains disagree", 1.1
        return replace(scores, verdict=verdict, mc_se=mc_se)

    monkeypatch.setattr(metrics, "read_scores", wide)
    assert bayesnde("evaluate", "--run", scored, *FEW).code == 0
    assert _metrics(scored)["rows"]["n_above_1_nat"] == 2
