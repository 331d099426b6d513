"""The benchmarks run, and they count operations as a count by hand does."""

import importlib.util
import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.runs.blocks import Plan, publish_block, read_block
from bayesnde_cli.runs.layout import RunLayout

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def _loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(FOLDER)  # as for a script: scoring.py imports timing.py
        monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return _loaded("training")


@pytest.fixture(scope="module")
def scoring() -> Any:
    return _loaded("scoring")


def _run(module: Any, tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], int]:
    """The only case of a run of a benchmark, and the number of its figures, which are finite and above 0."""
    path = tmp_path / "figures.json"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys.modules["timing"], "PRODUCTS", ((64, 64, 1),))
        module.main([*arguments, "--json", str(path)])
    [case] = json.loads(path.read_text("utf-8"))["cases"]
    figures = [value for value in case.values() if isinstance(value, float)]
    assert all(math.isfinite(figure) and figure > 0.0 for figure in figures)
    return case, len(figures)


def _first_words(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split()[0] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_a_run_prints_a_line_and_writes_sound_figures(
    benchmark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "SHAPES", ((2, 1),))  # residual networks take XLA ten seconds
    sizes = ["--seconds", "0.05", "--rows", "512", "--width", "16"]
    case, n_figures = _run(benchmark, tmp_path, "--only", "elbo", *sizes)
    assert n_figures == 9
    # 256 rows; 4 products between hidden layers of 16. Encoder 2 -> 16 and two heads 16 -> 1, decoder 1 -> 16, 16 -> 2.
    encoder, decoder = 32 + 4 * 256 + 2 * 16, 16 + 4 * 256 + 2 * 32
    assert case["gflop"] == pytest.approx(3 * 2 * 256 * (encoder + decoder) / 1e9)
    assert _first_words(capsys) == ["TensorFlow", "objective", "elbo"]


@pytest.mark.slow
def test_the_gradient_of_images_is_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--size", "4", "--channels", "2", "--rows", "3", "--seconds", "0.03"]
    assert _run(_loaded("images"), tmp_path, "--only", "gradient", *sizes)[1] == 9
    assert _first_words(capsys) == ["TensorFlow", "case", "gradient"]


def test_an_unknown_objective_is_refused(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(["--only", "gan"])
    assert "invalid choice: 'gan'" in capsys.readouterr().err


def test_errors_are_those_against_the_reference_of_rows_that_both_call_reliable(scoring: Any) -> None:
    def scores(log_density: list[float], se: float, reliable: list[bool]) -> dict[str, np.ndarray]:
        n_rows = len(log_density)
        found = {"log_density_scaled": np.array(log_density), "mc_se": np.full(n_rows, se)}
        return found | {"reliable": np.array(reliable)}

    reference = scores([1.0, 2.0, 3.0, 4.0], 0.1, [True, True, True, False])
    method = np.array(["importance", "importance", "bridge", "bridge"], object)
    found = scoring.errors(scores([1.1, 2.5, 2.9, 9.0], 0.1, [True] * 4), reference, method)
    assert list(found) == ["all", "importance", "bridge"]
    assert found["all"] == pytest.approx(
        {"rows": 3, "median": 0.1, "largest": 0.5, "mean": 0.5 / 3, "covered": 2 / 3}  # 1.96 hypot(.1, .1) is .28
    )
    assert found["bridge"]["rows"] == 1


@pytest.mark.slow
def test_a_fitted_run_gets_its_figures_and_growth_a_table(
    scoring: Any, fitted: Path, engines: list, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = tmp_path / "scoring.json"
    monkeypatch.setattr(scoring, "GROWTH", {"rows": [(20, 2, 1, 16)]})
    scoring.main([str(fitted), "--rows", "9", "--checked", "4", "--growth", "rows", "--json", str(path)])
    found = json.loads(path.read_text("utf-8"))
    [run], [case] = found["runs"], found["growth"]["rows"]
    assert (run["rows"], run["columns"]) == (9, 3)
    assert 0 < run["errors"]["auto"]["all"]["rows"] <= 4  # the stand-in calls some rows unreliable
    assert sum(run["shares"].values()) == pytest.approx(1.0)
    assert case["ms_per_row"] > 0.0
    # By the default, by bridges, and the long bridges that are the reference.
    assert [(engine.config.method, engine.config.draws) for engine in engines] == [
        ("auto", 100), ("bridge", 100), ("bridge", 1600)
    ]  # fmt: skip
    assert "rows per CPU second" in capsys.readouterr().out


def test_what_compiling_took_is_what_first_calls_took_beyond_the_others() -> None:
    sharding = _loaded("sharding")
    programs = sharding.Programs(started=0.0)
    programs.compiling = {"begin": [5.0], "segment": [3.0, 4.0], "weigh": [2.0]}  # the last was called once only
    programs.running = {"begin": [1.0, 1.0, 9.0], "segment": [0.5], "propose": [7.0]}
    assert programs.compile_cpu() == pytest.approx((5.0 - 1.0) + (7.0 - 2 * 0.5) + 2.0)
    assert sharding.Process(wall=9.0, cpu=8.0, startup_cpu=5.0).work_cpu == 3.0


def test_rows_that_are_made_up_in_pieces_are_as_many_as_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_rows = _loaded("many_rows")
    monkeypatch.setattr(many_rows, "_PIECE", 40)
    table = many_rows.pq.read_table(many_rows._rows(tmp_path / "rows.parquet", 100))
    assert (table.num_rows, table.column_names) == (100, ["a", "b", "c"])
    assert len(set(table["a"].to_pylist())) == 100


def test_a_block_that_stands_in_for_another_is_read_as_that_one(tmp_path: Path) -> None:
    many_rows, layout = _loaded("many_rows"), RunLayout(tmp_path)
    plan = Plan(stage="density", set_name="test", run_id="r" * 16, n_rows=30_000, block_rows=2, seed=1)
    table = pa.table({"row_id": [0, 1]})
    for block in (0, 12_345):
        publish_block(layout, plan, block, table)
    first, other = (layout.block_file("density", "test", block) for block in (0, 12_345))
    many_rows._renumber(pq.read_table(first), 12_345, other)
    assert read_block(layout, plan, 12_345).num_rows == 2
    other.write_bytes(first.read_bytes())
    with pytest.raises(BadArtifact):
        read_block(layout, plan, 12_345)


def test_random_tenths_of_a_table_with_far_outliers_find_them_all_and_of_one_with_none_apart_few() -> None:
    benchmark = _loaded("outliers")
    rng = np.random.default_rng(1)
    x, is_outlier = rng.standard_normal((600, 3)), rng.random(600) < 0.1
    by_chance = benchmark.precisions(x, is_outlier, 10)["blurred_kernels"]
    x[is_outlier] *= 100.0
    found = benchmark.precisions(x, is_outlier, 2)
    assert list(found) == list(benchmark.ALL)
    assert np.mean(found["blurred_kernels"]) > 0.9
    assert np.mean(by_chance) < 0.3


def test_kernels_without_the_least_likely_rows_know_no_cluster_of_outliers() -> None:
    benchmark = _loaded("outliers")
    rng = np.random.default_rng(2)
    x, is_outlier = rng.standard_normal((600, 3)), np.arange(600) < 30
    x[is_outlier] = 6.0 + 0.01 * rng.standard_normal((30, 3))  # close together: usual, to narrow kernels
    fits = {
        name: partial(benchmark.trimmed_kernels, blur=0.05, trim=trim) for name, trim in (("all", 0.0), ("most", 0.1))
    }
    found = benchmark.precisions(x, is_outlier, 5, fits)
    assert np.mean(found["most"]) > 0.9
    assert np.mean(found["all"]) < 0.5
