"""`evaluate` with stand-ins for engine and model: metrics.json of rows whose values can be worked out."""

import contextlib
import hashlib
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import bayesnde_cli.competitors as competitors
import fake_engine
import fake_model
from bayesnde_cli.cli.main import run as run_command
from bayesnde_cli.inference.bridge import VERDICTS
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.files import write_arrays
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import EvaluateSettings
from bayesnde_cli.stages import evaluate, loading, measures
from bayesnde_cli.stages.evaluate import format_classes
from bayesnde_cli.stages.measures import TYPICAL
from bayesnde_cli.tables.model_rows import read_schema
from bayesnde_cli.training.generated_rows import DIAGNOSTICS
from scoring_runs import FEW, SMALL, other_set

ALL = [*FEW, "--baselines"]
PLAIN = {"gaussian", "gaussian_mixture", "gaussian_mixture_scaled", "kernel_density"}


class Evaluation(NamedTuple):
    """A run with its metrics, and what it was made with."""

    run: Path
    metrics: dict
    out: str
    engines: list


@pytest.fixture(scope="module")
def conditional(fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """A run with a condition and a truth, evaluated with all baselines. Not to be written to."""
    run = Path(shutil.copytree(fitted, tmp_path_factory.mktemp("conditional") / "run"))
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "open_engine", loading.open_engine)  # put back afterwards
        engines = fake_engine.install()
        fake_model.install(patch, fake_model.NormalModel())
        assert run_command(["density", "--run", str(run), *SMALL, "-q"]) == 0
        with contextlib.redirect_stdout(out):
            assert run_command(["evaluate", "--run", str(run), *ALL, "-q"]) == 0
    return Evaluation(run, _metrics(run), out.getvalue(), engines)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an outlier label and a truth, without a condition. Not to be written to."""
    folder = tmp_path_factory.mktemp("labelled")
    rng = np.random.default_rng(0)
    is_outlier = rng.uniform(size=400) < 0.15
    x = rng.normal(size=(400, 3)) * np.where(is_outlier, 6.0, 1.0)[:, None]
    lines = [",".join(f"{cell:.6f}" for cell in row) + f",{int(bad)}" for row, bad in zip(x, is_outlier, strict=True)]
    truth = [f"{line},{-(row**2).sum():.4f}" for line, row in zip(lines, x, strict=True)]
    (folder / "d.csv").write_text("a,b,c,bad,true_log_density\n" + "\n".join(truth) + "\n")
    options = ["--outlier-label", "bad", "--scale", "standard", "--run", str(folder / "run"), "-q"]
    assert run_command(["prepare", str(folder / "d.csv"), *options]) == 0
    fake_engine.pretend_refined(folder / "run")
    return folder / "run"


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """No report, which takes longer than everything else here."""
    monkeypatch.setattr(evaluate, "report_page", lambda *_: b"page")
    monkeypatch.setattr(measures, "model_figures", lambda *_: None)


def _metrics(run: Path, set_name: str = "test") -> dict:
    return json.loads((run / f"evaluate/{set_name}/metrics.json").read_text())


def test_the_document_of_a_conditional_run_with_truth(conditional: Evaluation) -> None:
    run, found, *_ = conditional
    names = "schema schema_version run_id blur rows mean_log_density mean_log_density_se mean_log_density_mc_se "
    names += "mean_log_density_scaled mean_log_density_scaled_se bits_per_dimension bits_per_dimension_se classes "
    names += "truth outliers accuracy accuracy_se confusion_matrix generation typicality baselines reasons"
    assert list(found) == sorted(names.split())
    assert (found["schema"], found["schema_version"]) == ("metrics", 1)
    table = pq.read_table(run / "density/test/density.parquet")
    log_density, n = table["log_density"].to_numpy(), table.num_rows
    assert found["mean_log_density"] == pytest.approx(log_density.mean())
    assert found["mean_log_density_se"] == pytest.approx(log_density.std(ddof=1) / np.sqrt(n))
    assert found["mean_log_density_mc_se"] == pytest.approx(np.sqrt(np.sum(table["mc_se"].to_numpy() ** 2)) / n)
    assert found["mean_log_density_scaled"] == pytest.approx(table["log_density_scaled"].to_numpy().mean())
    truth = table["true_log_density"].to_numpy()
    assert found["truth"]["spearman"] == pytest.approx(stats.spearmanr(log_density, truth).statistic)
    classes = np.array(table["k"].to_pylist())
    for name in "uv":
        own = log_density[classes == name]
        assert found["classes"][name]["n"] == len(own)
        assert found["classes"][name]["mean_log_density"] == pytest.approx(own.mean())
    assert found["rows"]["n"] == found["rows"]["n_in_mean"] == n
    assert found["rows"]["n_reliable"] == sum(table["reliable"].to_pylist())
    # Every verdict that the engine knows can be asked for.
    assert found["rows"]["verdicts"] == dict.fromkeys(VERDICTS, 0) | Counter(table["verdict"].to_pylist())
    assert found["outliers"] is None
    reasons = {"bits_per_dimension": "the rows are not images", "outliers": "the rows have no outlier label"}
    assert found["reasons"] == reasons
    test = pq.read_table(run / "prepare/test.parquet")
    cells = np.stack([test[name].to_numpy().astype("<f8") for name in ("a", "b", "n")], axis=1)
    assert found["rows"]["sha256"] == hashlib.sha256(cells.tobytes()).hexdigest()


def test_the_engine_finds_the_likeliest_class(conditional: Evaluation) -> None:
    """The stand-in's density falls by one with the class: the first class always wins."""
    test = pq.read_table(conditional.run / "prepare/test.parquet")
    n, n_first, engine = test.num_rows, test["k"].to_pylist().count("u"), conditional.engines[-1]
    assert conditional.metrics["accuracy"] == pytest.approx(n_first / n)
    assert conditional.metrics["confusion_matrix"]["classes"] == ["u", "v"]
    assert conditional.metrics["confusion_matrix"]["counts"] == [[n_first, 0], [n - n_first, 0]]
    assert (engine.config.escalations, engine.config.block_rows) == (0, 8)  # else the settings of `density`
    n_last = 2 * (n % 32)  # 32 rows at a time, with all their classes
    assert engine.n_real == [8] * (8 * (n // 32) + n_last // 8) + [n_last % 8]


def test_baselines_are_fitted_to_values_with_their_noise_in_the_units_of_the_file(conditional: Evaluation) -> None:
    """A Gaussian for each class, from the prepared tables alone: the inverse of x_scaled has the noise."""
    maps = [feature.map for feature in read_schema(RunLayout(conditional.run)).features]

    def rows(split: str) -> tuple[np.ndarray, np.ndarray]:
        table = pq.read_table(conditional.run / f"prepare/{split}.parquet")
        x = np.array(table["x_scaled"].to_pylist())
        noisy = [column.inverse(u) for column, u in zip(maps, x.T, strict=True)]
        return np.stack(noisy, axis=1), np.array(table["k"].to_pylist())

    (train, train_class), (test, test_class) = rows("train"), rows("test")
    exact = np.empty(len(test))
    for name in "uv":
        own = train[train_class == name]
        gaussian = stats.multivariate_normal(own.mean(axis=0), np.cov(own.T, ddof=0))
        exact[test_class == name] = gaussian.logpdf(test[test_class == name])
    found = conditional.metrics["baselines"]
    assert found["gaussian"]["mean_log_density"] == pytest.approx(exact.mean(), abs=1e-3)
    assert found["gaussian"]["gain"] == pytest.approx(conditional.metrics["mean_log_density"] - exact.mean(), abs=1e-3)
    assert set(found) == PLAIN
    assert set(found["kernel_density"]["chosen"]) == {"u", "v"}
    assert found["gaussian"]["outliers"] is None


@pytest.mark.usefixtures("no_report")
def test_generation_and_typicality_compare_rows_with_the_models_own(
    bayesnde: Callable, conditional: Evaluation, scored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaled columns are standard normal, and so are the rows of the stand-in; a shifted model is flagged."""
    right = conditional.metrics
    of_itself = right["generation"]["of_itself"]
    assert set(of_itself) == set(DIAGNOSTICS) <= set(right["generation"])
    assert set(right["generation"]["classes"]) == {"u", "v"}
    assert right["typicality"]["verdict"] == TYPICAL
    assert right["typicality"]["simulated"]["n"] == 100
    assert 0.3 * of_itself["ks"] < right["generation"]["ks"] < 3 * of_itself["ks"]
    fake_model.install(monkeypatch, fake_model.NormalModel(shift=1.5))
    assert bayesnde("evaluate", "--run", scored, *FEW, "--accuracy-rows", "10").code == 0
    shifted = _metrics(scored)
    assert shifted["typicality"]["verdict"].startswith("rows have lower density than the model's own rows")
    for name in ("ks", "marginal_wasserstein", "sliced_wasserstein", "rbf_mmd"):
        assert shifted["generation"][name] > 2 * right["generation"][name]
        assert shifted["generation"][name] > 2 * shifted["generation"]["of_itself"][name]
    assert shifted["confusion_matrix"]["n"] == 10


def test_of_many_classes_some_are_shown() -> None:
    figures = {"n": 2, "mean_log_density": -1.0, "mean_log_density_se": 0.5}
    table = format_classes({"classes": {f"c{index}": figures for index in range(500)}}).splitlines()
    assert (len(table), table[-1]) == (22, "… and 480 more classes in metrics.json")
    assert len(format_classes({"classes": dict.fromkeys("abc", figures)}).splitlines()) == 4


@pytest.mark.parametrize("blur", [0.0, 0.5])
def test_outlier_labels_bring_figures_of_every_method_and_a_blurred_density_no_gains(
    bayesnde: Callable, engines: list, models: list, labelled: Path, tmp_path: Path, blur: float
) -> None:
    run = shutil.copytree(labelled, tmp_path / "run")
    assert bayesnde("density", "--run", run, "--blur", blur, *SMALL).code == 0
    outcome = bayesnde("evaluate", "--run", run, *ALL)
    assert outcome.code == 0, outcome.err
    found = _metrics(run)
    n_outliers = pq.read_table(run / "prepare/test.parquet")["bad"].to_pylist().count(1)
    assert (found["blur"], found["outliers"]["n_outliers"]) == (blur, n_outliers)
    assert found["outliers"]["auroc"] > 0.9  # the stand-in's density falls with the squares of the cells
    assert set(found["baselines"]) == PLAIN | {"one_class_svm", "isolation_forest"}
    for name, figures in found["baselines"].items():
        assert figures["outliers"]["auroc"] > 0.8, name
        assert (figures.get("gain") is None) == (blur > 0 or name in ("one_class_svm", "isolation_forest"))
    assert "mean_log_density" not in found["baselines"]["isolation_forest"]
    assert (found["classes"], found["accuracy"], found["truth"] is None) == (None, None, blur > 0)
    assert f"precision@{n_outliers}  " in outcome.out
    page = (run / "evaluate/test/report.html").read_text("utf-8")
    assert ("The model was blurred in every column" in page) == (blur > 0)
    if not blur:  # scaled to mean 0 and s.d. 1, and back: the same mixture, except for float32
        two = [found["baselines"][name]["mean_log_density"] for name in sorted(PLAIN)[1:3]]
        assert two[0] == pytest.approx(two[1], abs=1e-3)


@pytest.mark.usefixtures("no_report")
def test_rows_with_missing_cells_are_left_out_where_complete_rows_are_compared(
    bayesnde: Callable, scored: Path, tmp_path: Path
) -> None:
    (tmp_path / "gaps.csv").write_text("k,n,b,a\nu,3,1.5,0.25\nv,,2.5,\nu,,,\nu,4,0.5,-1.0\nv,2,1.5,-1.0\n")
    assert bayesnde("evaluate", tmp_path / "gaps.csv", "--run", scored, *ALL).code == 3
    assert bayesnde("density", tmp_path / "gaps.csv", "--run", scored, *SMALL).code == 0
    outcome = bayesnde("evaluate", tmp_path / "gaps.csv", "--run", scored, *ALL)
    assert outcome.code == 0, outcome.err
    found = _metrics(scored, other_set(scored))
    assert found["baselines"]["gaussian"]["n"] == found["typicality"]["rows"]["n"] == 3
    assert (found["rows"]["n"], found["rows"]["n_incomplete"], found["rows"]["n_in_mean"]) == (5, 2, 3)
    density = pq.read_table(scored / "density" / other_set(scored) / "density.parquet").to_pylist()
    complete = [row for row in density if row["n_observed"] == 3]
    assert found["mean_log_density"] == pytest.approx(np.mean([row["log_density"] for row in complete]))
    in_class = [row["log_density"] for row in complete if row["k"] == "v"]
    assert found["classes"]["v"]["mean_log_density"] == pytest.approx(np.mean(in_class))
    assert (found["classes"]["u"]["n"], found["classes"]["v"]["n"]) == (2, 1)
    assert "left out of the mean: 2 rows with missing cells\n" in outcome.out
    assert (found["confusion_matrix"]["n"], found["confusion_matrix"]["n_without_class"]) == (5, 1)  # without cells
    assert found["truth"] is None


@pytest.mark.usefixtures("no_report")
def test_rows_with_missing_cells_enter_neither_truth_nor_outliers(
    bayesnde: Callable, engines: list, models: list, labelled: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(labelled, tmp_path / "run")
    header, *lines = (labelled.parent / "d.csv").read_text().splitlines()
    gaps = ["," + line.split(",", 1)[1] for line in lines[:40]]
    (tmp_path / "gaps.csv").write_text("\n".join([header, *lines[:40], *gaps]) + "\n")
    assert bayesnde("density", tmp_path / "gaps.csv", "--run", run, *SMALL).code == 0
    outcome = bayesnde("evaluate", tmp_path / "gaps.csv", "--run", run, *ALL, "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    table = pq.read_table(run / "density" / other_set(run) / "density.parquet").slice(0, 40)
    log_density, truth = (table[name].to_numpy() for name in ("log_density", "true_log_density"))
    assert (found["rows"]["n"], found["truth"]["n"]) == (80, 40)
    assert found["truth"]["spearman"] == pytest.approx(stats.spearmanr(log_density, truth).statistic)
    for figures in (found, *found["baselines"].values()):
        counts = figures["outliers"]["n"], figures["outliers"]["n_outliers"]
        assert counts == (40, table["bad"].to_pylist().count(1))


def test_a_file_without_a_complete_row(bayesnde: Callable, scored: Path, tmp_path: Path) -> None:
    (tmp_path / "gaps.csv").write_text("k,n,b,a\nu,3,1.5,\nv,,2.5,1.0\n")
    assert bayesnde("density", tmp_path / "gaps.csv", "--run", scored, *SMALL).code == 0
    outcome = bayesnde("evaluate", tmp_path / "gaps.csv", "--run", scored, *ALL)
    assert outcome.code == 0, outcome.err
    found = _metrics(scored, other_set(scored))
    for name in ("generation", "typicality", "mean_log_density", "baselines"):
        assert (found[name], found["reasons"][name]) == (None, "every row has missing cells")
    assert "no mean log-density: every row has missing cells\n" in outcome.out
    assert "every row has missing cells" in (scored / "evaluate" / other_set(scored) / "report.html").read_text()


@pytest.mark.usefixtures("no_report")
def test_a_column_without_its_noise_has_no_baselines(
    bayesnde: Callable, engines: list, models: list, fitted: Path, tmp_path: Path
) -> None:
    data = json.loads((fitted / "prepare/manifest.json").read_text())["inputs"]["data-0"]["path"]
    options = ["--condition", "k", "--id", "name", "--dequantize", "none", "--run", tmp_path / "r"]
    assert bayesnde("prepare", data, *options).code == 0
    fake_engine.pretend_refined(tmp_path / "r")
    assert bayesnde("density", "--run", tmp_path / "r", *SMALL).code == 0
    assert bayesnde("evaluate", "--run", tmp_path / "r", *ALL, "--accuracy-rows", "0").code == 0
    reasons = _metrics(tmp_path / "r")["reasons"]
    assert reasons["baselines"] == "column 'n' is lattice and without noise: it has no continuous density"
    assert reasons["accuracy"] == "not asked for"


@pytest.mark.usefixtures("no_report")
def test_rows_without_an_estimate_and_rows_with_a_wide_error_are_counted(
    bayesnde: Callable, engines: list, models: list, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine.install(loses_first=True)
    assert bayesnde("density", "--run", run, *SMALL).code == 0

    def read_table(*given: Any) -> pa.Table:
        table = read(*given)
        names = ["error above target"] * table.num_rows
        verdict = pa.array(["chains disagree", *names[1:]])
        table = table.set_column(table.column_names.index("verdict"), "verdict", verdict)
        mc_se = pa.array([1.1] * 3 + [0.9] * (table.num_rows - 3))
        return table.set_column(table.column_names.index("mc_se"), "mc_se", mc_se)

    read = evaluate.read_table
    monkeypatch.setattr(evaluate, "read_table", read_table)
    outcome = bayesnde("evaluate", "--run", run, *FEW)
    assert outcome.code == 0, outcome.err
    found = _metrics(run)
    assert (found["rows"]["n_not_finite"], found["rows"]["n_above_1_nat"]) == (8, 2)
    log_density = pq.read_table(run / "density/test/density.parquet")["log_density"].to_numpy()
    assert found["mean_log_density"] == pytest.approx(np.nanmean(log_density))
    # The first row and class of each block: of 32 rows the same four of either class, of the last 30 others.
    assert found["confusion_matrix"]["n_without_class"] == 4 + 8
    assert found["rows"]["n_in_mean"] == sum(item["n"] for item in found["classes"].values()) == len(log_density) - 8
    assert "left out: 8 rows without a finite log-density\n" in outcome.out


def test_real_networks_find_their_own_rows_typical_and_shifted_ones_not(tmp_path: Path) -> None:
    from dataclasses import asdict, replace

    from bayesnde_cli.model.coders import decoder_spec, encoder_spec, initial_autoencoder

    layout = RunLayout(tmp_path / "run")
    decoder, encoder = (replace(spec(2, 3, 2), width=8, depth=1) for spec in (decoder_spec, encoder_spec))
    weights = {name: value.numpy() for name, value in initial_autoencoder(decoder, encoder, 0).items()}
    layout.weights_file("refine").parent.mkdir(parents=True)
    facts = {"decoder": asdict(decoder), "encoder": asdict(encoder), "run_id": "r"}
    write_arrays(layout.weights_file("refine"), weights, facts)
    model = loading.open_model(layout, EvaluateSettings(seed=0))
    y = np.eye(2, dtype=np.float32)[np.arange(300) % 2]
    x, again, other = (model.simulate(300, y, seed) for seed in (12345, 12345, 12346))
    assert (x.shape, x.dtype, np.array_equal(x, again), np.array_equal(x, other)) == ((300, 3), np.float32, True, False)
    own, repeated, shifted = (
        measures.typicality(model, Rows(cells, y=y), 300, 0) for cells in (x, x, x + np.float32(2.0))
    )
    assert own["verdict"] == TYPICAL
    assert own == repeated
    assert shifted["verdict"].startswith("rows have lower density than the model's own rows")


# Run again


@pytest.mark.usefixtures("no_report")
def test_again_it_is_up_to_date_and_other_settings_are_refused(bayesnde: Callable, models: list, scored: Path) -> None:
    options = ["evaluate", "--run", scored, *FEW, "--accuracy-rows", "4"]
    document = scored / "evaluate/test/metrics.json"
    first = bayesnde(*options)
    before = document.stat()
    again = bayesnde(*options, "--threads", "1")
    assert again.out == first.out.replace("reliable\n", "reliable (up to date)\n", 1)
    assert document.stat().st_mtime_ns == before.st_mtime_ns
    assert len(models) == 1
    other = bayesnde(*options, "--generated-rows", "300")
    assert other.code == 2
    assert "  settings.generated_rows: 200 -> 300\n" in other.err
    content = document.read_bytes()
    assert bayesnde(*options, "--restart").code == 0
    assert document.read_bytes() == content  # the same random numbers
    assert bayesnde(*options, "--restart", "--seed", "5").code == 0
    assert document.read_bytes() != content


@pytest.mark.usefixtures("no_report")
def test_densities_that_are_missing_stale_or_damaged_are_not_evaluated(
    bayesnde: Callable, engines: list, models: list, run: Path
) -> None:
    options = ["evaluate", "--run", run, *FEW, "--accuracy-rows", "0"]
    density = ["density", "--run", run, *SMALL]

    def state() -> str:
        return json.loads(bayesnde("status", "--run", run, "--json").out)["stages"][-1]["state"]

    outcome = bayesnde(*options)
    assert outcome.code == 3
    assert outcome.err == (
        "error: density/test is missing or incomplete\n"
        f"  no {run}/density/test/manifest.json\nhint: run `bayesnde density --run {run}`\n"
    )
    assert not (run / "evaluate").exists()
    assert bayesnde(*density, "--shard", "1/2").code == 0
    assert bayesnde(*options).err == outcome.err
    assert bayesnde(*density).code == 0
    assert state() == "missing"
    assert bayesnde(*options).code == 0
    assert state() == "done"
    document = run / "evaluate/test/metrics.json"
    content = document.read_bytes()
    document.write_bytes(content[:-10])
    assert state() == "damaged"
    damaged = bayesnde(*options)
    assert damaged.code == 3
    assert "is not what evaluate wrote\n" in damaged.err
    document.write_bytes(content)
    assert bayesnde(*density, "--seed", "5", "--restart").code == 0
    assert state() == "stale"
    stale = bayesnde(*options)
    assert stale.code == 3
    assert stale.err == (
        "error: evaluate/test was made from files that have changed since\n"
        "  density/test/density.parquet is not the one that evaluate/test read\n"
        f"hint: run `bayesnde evaluate --run {run} --restart`\n"
    )
    assert bayesnde(*options, "--restart").code == 0
    fake_engine.pretend_refined(run, b"others!")
    assert bayesnde(*options, "--restart").code == 3
    assert len(models) == 2


# Competitors that the user names


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neural densities with few steps."""
    for package in competitors.PACKAGES:
        pytest.importorskip(package, reason="needs the extra bayesnde[baselines]")
    from bayesnde_cli.competitors import neural

    monkeypatch.setattr(neural, "N_BLOCKS", 2)
    few = {name: kind._replace(length=neural.Length(steps=30, check_every=10)) for name, kind in neural.KINDS.items()}
    monkeypatch.setattr(neural, "KINDS", few)


@pytest.mark.usefixtures("quick")
def test_a_named_competitor_appears_next_to_the_plain_estimators(bayesnde: Callable, scored: Path) -> None:
    options = ["evaluate", "--run", scored, *ALL, "--accuracy-rows", "0", "--baseline", "made,resflow,made"]
    outcome = bayesnde(*options)
    assert outcome.code == 0, outcome.err
    first = _metrics(scored)
    found = first["baselines"]
    assert set(found) == PLAIN | {"made", "resflow"}
    assert set(found["made"]) == set(found["gaussian"])
    assert found["made"]["n"] == found["gaussian"]["n"]
    assert found["made"]["chosen"]["fit"] == "conditional"
    assert found["resflow"]["chosen"]["fit"] == "experts"
    assert set(found["resflow"]["chosen"]["classes"]) == {"u", "v"}
    for name in ("made", "resflow"):
        figures = found[name]
        assert figures["chosen"]["scaling"] in ("file", "model")
        line = next(line for line in outcome.out.splitlines() if line.startswith(f"{name} "))
        assert f"{figures['mean_log_density']:.4f}" in line
        assert line.endswith(f"{figures['gain']:.4f} ± {2 * figures['gain_se']:.4f}")
    page = (scored / "evaluate/test/report.html").read_text()
    for text in ("MADE", "residual flow", "by class, fit experts, scaling"):
        assert text in page
    assert "(up to date)" in bayesnde(*options).out
    assert bayesnde(*options, "--restart").code == 0
    assert _metrics(scored) == first


def test_what_cannot_be_fitted_is_refused_before_the_work(
    bayesnde: Callable, conditional: Evaluation, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(conditional.run, tmp_path / "run", ignore=shutil.ignore_patterns("evaluate"))
    monkeypatch.setattr(competitors, "find_spec", lambda name: None)
    hint = "hint: run `pip install 'bayesnde[baselines]'`, then the same command again\n"
    outcome = bayesnde("evaluate", "--run", run, *FEW, "--baseline", "nsf", "--baseline", "cfm")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --baseline nsf --baseline cfm needs packages that are not installed\n"
        f"  no torch, zuko, normflows\n{hint}"
    )
    assert not (run / "evaluate").exists()
    monkeypatch.setattr(competitors, "find_spec", lambda name: None if name == "torch" else object())
    options = ["--run", tmp_path / "other", "--set", "evaluate.baseline=maf,made"]
    outcome = bayesnde("fit", examples / "faithful.csv", *options)
    assert outcome.code == 2
    assert outcome.err == (
        f"error: --baseline maf --baseline made needs packages that are not installed\n  no torch\n{hint}"
    )
    assert not (tmp_path / "other" / "prepare").exists()
    outcome = bayesnde("evaluate", "--run", run, *FEW, "--baseline", "realnpv")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --baseline cannot be 'realnpv'\n"
        "  choices: made, maf, realnvp, nsf, cfm, resflow, roundtrip\n"
        "hint: did you mean 'realnvp'?\n"
    )
