"""The rows of an experiment: to the byte the same for our arms, for the protocol and for the competitors."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from bayesnde_cli.artifacts import claims
from bayesnde_cli.artifacts.experiments_layout import ExperimentsLayout
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.cli.console import Console
from bayesnde_cli.config import PrepareConfig
from bayesnde_cli.stages.evaluate.comparing import Tables
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.reproduce import rows
from bayesnde_cli.stages.reproduce.experiments import DEFAULT, EXPERIMENTS, PAPER, Experiment
from bayesnde_cli.stages.reproduce.rows import (
    competitors_tables,
    data_files,
    prepare_rows,
    read_tables,
    rows_sha256,
    unit_interval_shift,
)
from bayesnde_cli.stages.reproduce.settings import arm_settings, prepare_settings

QUIET = Console(quiet=True)
N_ROWS = 400
# The protocol of BANK: noise on lattices, scaled to [0, 1] by all rows, the last tenth is for testing.
LATTICES = replace(EXPERIMENTS["bank"], name="lattices")


@pytest.fixture
def table(tmp_path: Path) -> list[Path]:
    """Two columns of whole numbers, one of categories, one that is continuous."""
    rng = np.random.default_rng(0)
    lines = [
        f"{rng.poisson(5)},{rng.integers(0, 50)},{'abc'[rng.integers(0, 3)]},{rng.normal():.9f}" for _ in range(N_ROWS)
    ]
    (tmp_path / "d.csv").write_text("\n".join(["n,m,k,x", *lines]) + "\n")
    return [tmp_path / "d.csv"]


@pytest.fixture
def layout(tmp_path: Path) -> ExperimentsLayout:
    return ExperimentsLayout(tmp_path / "r")


def _prepared(folder: Path, files: list[Path], config: PrepareConfig) -> tuple[str, Tables]:
    run = RunLayout(folder)
    prepare_rows(run, files, config, QUIET)
    schema = read_schema(run)
    found = read_tables(run, schema)
    return rows_sha256(schema, found), found


def _own(experiment: Experiment, recipe: str, test_rows: int | None, *more: str) -> PrepareConfig:
    return arm_settings(experiment, experiment.recipes[recipe], seed=3, test_rows=test_rows, more=more).prepare


def test_all_methods_have_the_same_rows_with_the_same_noise(
    table: list[Path], layout: ExperimentsLayout, tmp_path: Path
) -> None:
    digest, ours = _prepared(tmp_path / "default", table, _own(LATTICES, DEFAULT, None))
    assert _own(LATTICES, DEFAULT, None).scale == "auto"
    schema, tables = competitors_tables(layout, LATTICES, table, None, QUIET)
    protocol, _ = _prepared(tmp_path / "protocol", table, prepare_settings(LATTICES, None, ()))
    assert digest == protocol == rows_sha256(schema, tables)
    assert len(ours.evaluated.values) == 40
    # There is noise, and the competitors are handed it.
    noisy = tables.spaces(schema)["file"].evaluated.cells
    moved = np.abs(noisy - ours.evaluated.values)
    assert (moved[:, :3] > 0).mean() > 0.99
    assert moved[:, :3].max() <= 0.2
    # Negative controls: other noise, fewer rows.
    assert _prepared(tmp_path / "seed", table, _own(LATTICES, PAPER, None, "prepare.seed=43"))[0] != digest
    assert _prepared(tmp_path / "fewer", table, _own(LATTICES, DEFAULT, 10))[0] != digest


def test_the_hash_sees_all_that_a_method_is_given_and_judged_by(
    table: list[Path], layout: ExperimentsLayout, tmp_path: Path
) -> None:
    schema, tables = competitors_tables(layout, LATTICES, table, 10, QUIET)
    digest = rows_sha256(schema, tables)
    for place, part in enumerate(tables):
        marked = replace(part, classes=np.arange(len(part.values)) % 2)
        others = [
            replace(part, values=part.values[::-1]),
            replace(part, row_ids=part.row_ids + 1),
            marked,
            replace(part, classes=1 - marked.classes),
            replace(part, is_outlier=np.zeros(len(part.values), bool)),
            replace(part, truth=part.log_jacobian),
        ]
        digests = {rows_sha256(schema, Tables(*tables[:place], other, *tables[place + 1 :])) for other in others}
        assert len(digests | {digest}) == 1 + len(others)


def test_the_hash_is_that_of_cells_ids_and_truth_split_by_split(
    layout: ExperimentsLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "SIMULATED_ROWS", N_ROWS)
    involute = EXPERIMENTS["involute"]
    files = data_files(layout, involute, tmp_path / "none")
    digest, found = _prepared(tmp_path / "own", files, _own(involute, PAPER, None))
    data = pq.read_table(files[0])
    whole = np.column_stack([data[name].to_numpy() for name in data.column_names])
    naive = hashlib.sha256()
    for part in found:
        cells = whole[part.row_ids]
        for array in (cells[:, :2], part.row_ids, cells[:, 2]):
            naive.update(np.ascontiguousarray(array, "<f8").tobytes())
    assert naive.hexdigest() == digest


def test_simulated_rows_are_those_of_the_simulator_and_are_made_once(
    layout: ExperimentsLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "SIMULATED_ROWS", N_ROWS)
    from bayesnde_cli.cli.main import run

    (path,) = data_files(layout, EXPERIMENTS["gmm-5"], tmp_path)
    written, content = path.stat().st_mtime_ns, path.read_bytes()
    plain = tmp_path / "plain.csv"
    arguments = ["simulate", "gmm", "--dim", "5", "--rows", str(N_ROWS), "--seed", "1024", "--out", str(plain)]
    assert run(arguments) == 0
    assert np.allclose(np.loadtxt(plain, delimiter=",", skiprows=1), pq.read_table(path).to_pandas(), rtol=1e-12)
    assert data_files(layout, EXPERIMENTS["gmm-5"], tmp_path) == [path]
    assert (path.stat().st_mtime_ns, path.read_bytes()) == (written, content)


def test_the_shift_to_the_unit_interval_is_that_of_log_densities(
    table: list[Path], layout: ExperimentsLayout, tmp_path: Path
) -> None:
    shift = unit_interval_shift(layout, LATTICES, table, None, QUIET)
    run = layout.prepared("lattices", "protocol", None)
    schema = read_schema(run)
    parts = read_tables(run, schema)
    noisy = [schema.noisy(part.values, part.row_ids) for part in parts]
    whole = np.concatenate(noisy)
    assert shift == pytest.approx(np.log(whole.max(axis=0) - whole.min(axis=0)).sum(), abs=1e-6)

    # A Gaussian that is fitted to the training rows goes along with any linear scaling.
    def log_density(train: np.ndarray, evaluated: np.ndarray) -> np.ndarray:
        return np.asarray(stats.multivariate_normal(train.mean(axis=0), np.cov(train.T)).logpdf(evaluated))

    in_file = log_density(noisy[0], noisy[2])
    scaled = log_density(*(parts[index].x.astype(np.float64) for index in (0, 2)))
    assert np.allclose(scaled - in_file, shift, atol=1e-4)
    assert abs(shift) > 1.0  # else it would show nothing
    assert unit_interval_shift(layout, replace(LATTICES, is_unit_interval=False), table, None, QUIET) == 0.0


def test_fewer_test_rows_are_the_same_for_all_and_each_number_has_its_folder(
    table: list[Path], layout: ExperimentsLayout, tmp_path: Path
) -> None:
    whole, everything = _prepared(tmp_path / "all", table, _own(LATTICES, PAPER, None))
    few, some = _prepared(tmp_path / "few", table, _own(LATTICES, PAPER, 12))
    for test_rows, digest in ((12, few), (None, whole), (12, few)):
        schema, tables = competitors_tables(layout, LATTICES, table, test_rows, QUIET)
        assert rows_sha256(schema, tables) == digest
    assert (len(some.evaluated.values), few == whole) == (12, False)
    assert set(some.evaluated.row_ids) < set(everything.evaluated.row_ids)
    assert unit_interval_shift(layout, LATTICES, table, 12, QUIET) == unit_interval_shift(
        layout, LATTICES, table, None, QUIET
    )


def test_rows_that_another_shard_is_preparing_are_waited_for(
    table: list[Path], layout: ExperimentsLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = layout.prepared("lattices", "marginal", None)
    waited = []
    run.stage_dir("prepare").mkdir(parents=True)
    with claims.holding(run.claim_file("prepare")) as ours:
        assert ours is not None

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            run.claim_file("prepare").unlink(missing_ok=True)  # the other one is done

        monkeypatch.setattr(rows.time, "sleep", sleep)
        competitors_tables(layout, LATTICES, table, None, QUIET)
    assert len(waited) == 1
