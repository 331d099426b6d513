"""`prepare` end to end: what it writes, how it chooses the scaling, and that disturbances leave no trace."""

import hashlib
import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.cli.main import run as run_cli
from bayesnde_cli.rng import derive_seed, uniform_at
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.tables import survey
from bayesnde_cli.tables.model_rows import read_schema

SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def messy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with every kind of column, 400 rows."""
    rng = np.random.default_rng(5)
    n = 400
    columns = {
        "size": rng.lognormal(size=n),
        "count": rng.poisson(3.0, n),
        "colour": rng.choice(["red", "green", "blue"], n),
        "class": rng.choice(["10", "9"], n),
        "odd": rng.integers(0, 2, n),
        "name": [f"row {index}" for index in range(n)],
        "true_log_density": rng.normal(size=n),
        "note": rng.choice(["", "x"], n),
    }
    path = tmp_path_factory.mktemp("messy") / "messy.csv"
    pa.csv.write_csv(pa.table(columns), path)
    return path


PLAIN = ("--scale", "standard")  # quick, where the scaling does not matter
MARGINAL = ("--scale", "marginal")
ROLES = ("--condition", "class", "--outlier-label", "odd", "--id", "name", "--drop", "note")


@pytest.fixture(scope="module")
def prepared(messy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of that table; no test may change it."""
    run = tmp_path_factory.mktemp("prepared") / "r"
    assert run_cli(["prepare", str(messy), *ROLES, *MARGINAL, "--run", str(run), "--quiet"]) == 0
    return run


def _tables(run: Path) -> dict[str, pa.Table]:
    return {name: pq.read_table(run / "prepare" / f"{name}.parquet") for name in SPLITS}


def _bytes(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "prepare").iterdir() if path.name != "manifest.json"}


def _matrix(table: pa.Table) -> np.ndarray:
    return np.array(table["x_scaled"].to_pylist(), np.float32)


def test_every_row_is_in_one_split_with_its_values_labels_and_scaled_features(
    bayesnde: Callable, messy: Path, prepared: Path
) -> None:
    again = bayesnde("prepare", messy, *ROLES, *MARGINAL, "--run", prepared)
    assert (again.code, again.err) == (0, "")
    assert again.out == f"{prepared}/prepare: 324 training, 36 validation and 40 test rows, 3 features (up to date)\n"
    together = pa.concat_tables(_tables(prepared).values()).sort_by("row_id")
    assert together["row_id"].to_pylist() == list(range(400))
    original = pa.csv.read_csv(messy)
    for name in ("size", "count", "colour", "class", "odd", "name", "true_log_density"):
        assert together[name].to_pylist() == original[name].to_pylist(), name
    assert together.schema.names == [
        *("row_id", "size", "count", "colour", "name", "class", "odd", "true_log_density"),
        *("x_scaled", "log_jacobian"),
    ]
    assert together.schema.field("x_scaled").type == pa.list_(pa.float32(), 3)


def test_scaled_training_features_are_standard_normal(
    bayesnde: Callable, messy: Path, prepared: Path, tmp_path: Path
) -> None:
    scaled = _matrix(_tables(prepared)["train"])
    assert np.all(np.abs(scaled.mean(axis=0)) < 0.15)
    assert np.all(np.abs(scaled.std(axis=0) - 1) < 0.15)
    # Negative control: without scaling they are not. Another seed has other training rows.
    bayesnde("prepare", messy, *ROLES, "--scale", "none", "--seed", "1", "--run", tmp_path / "none")
    plain = _tables(tmp_path / "none")["train"]
    assert np.any(np.abs(_matrix(plain).mean(axis=0)) > 0.5)
    assert plain["row_id"] != _tables(prepared)["train"]["row_id"]


@pytest.mark.parametrize("scale", ["marginal", "minmax"])
def test_log_densities_agree_in_both_units_through_the_jacobian(scale: str, bayesnde: Callable, tmp_path: Path) -> None:
    # The log-slope must be that of finite differences between neighbouring rows.
    rng = np.random.default_rng(1)
    values = np.sort(rng.gamma(3.0, size=1000))
    (tmp_path / "d.csv").write_text("v\n" + "\n".join(map(repr, values.tolist())) + "\n")
    bayesnde("prepare", tmp_path / "d.csv", "--scale", scale, "--run", tmp_path / "r")
    table = pa.concat_tables(_tables(tmp_path / "r").values()).sort_by("row_id")
    raw, scaled = table["v"].to_numpy(), _matrix(table)[:, 0].astype(float)
    middle = slice(50, 940)
    step = 12  # far enough apart that float32 does not matter
    slopes = (scaled[step:] - scaled[:-step])[middle] / (raw[step:] - raw[:-step])[middle]
    stored = table["log_jacobian"].to_numpy()
    between = 0.5 * (stored[step:] + stored[:-step])[middle]
    assert np.max(np.abs(np.log(slopes) - between)) < 0.05
    assert abs(np.mean(np.log(slopes) - between)) < 0.002


def test_stdin_parts_and_parquet_give_the_rows_of_the_whole_file(
    bayesnde: Callable, messy: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = messy.read_text().splitlines(keepends=True)
    (tmp_path / "a.csv").write_text("".join(lines[:150]))
    (tmp_path / "b.csv").write_text(lines[0] + "".join(lines[150:]))
    pq.write_table(pa.csv.read_csv(messy), tmp_path / "d.parquet")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(messy.read_bytes())))
    whole = _tables(prepared)
    for run, data in {"parts": ["a.csv", "b.csv"], "parquet": ["d.parquet"], "stdin": ["-"]}.items():
        files = [file if file == "-" else tmp_path / file for file in data]
        assert bayesnde("prepare", *files, *ROLES, *MARGINAL, "--run", tmp_path / run).code == 0
        for name, table in _tables(tmp_path / run).items():
            assert table.equals(whole[name])
    # The same content is the same run, wherever it came from.
    assert _bytes(tmp_path / "stdin") == _bytes(prepared)


def test_an_older_result_is_replaced_only_when_asked_and_only_by_a_complete_one(
    bayesnde: Callable, messy: Path, prepared: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r"
    shutil.copytree(prepared, run)
    command = ("prepare", messy, *ROLES, "--run", run)
    other = bayesnde(*command, *PLAIN, "--seed", "4")
    assert other.code == 2
    assert other.err == (
        "error: prepare was made with other settings or data\n"
        "  settings.scale: 'marginal' -> 'standard'\n"
        "  settings.seed: 0 -> 4\n"
        f"hint: run `bayesnde prepare DATA --run {run} --restart` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`\n"
    )

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as monkeypatch:  # at the very end
        monkeypatch.setattr("bayesnde_cli.runs.manifest.Manifest.write", fail)
        assert bayesnde(*command, *PLAIN, "--restart").code == 2
    good = _bytes(prepared)
    assert _bytes(run) == good
    assert bayesnde(*command, *PLAIN, "--restart").code == 0
    assert _bytes(run) != good

    (run / "prepare/test.parquet").write_bytes(b"PAR1")
    damaged = bayesnde(*command, *PLAIN)
    assert damaged.code == 3
    assert damaged.err.startswith(f"error: {run}/prepare/test.parquet is not what prepare wrote\n  4 bytes instead of ")
    assert damaged.err.endswith(f"\nhint: run `bayesnde prepare DATA --run {run} --restart`\n")
    assert bayesnde(*command, *MARGINAL, "--restart").code == 0
    assert _bytes(run) == good


def test_the_manifest_records_what_ran_and_what_came_out(messy: Path, prepared: Path) -> None:
    manifest = json.loads((prepared / "prepare/manifest.json").read_text())
    assert manifest["config"]["condition"] == "class"
    assert manifest["seed"] == 0
    assert set(_bytes(prepared)) == {"train.parquet", "validation.parquet", "test.parquet", "schema.json"}
    assert manifest["inputs"]["data-0"]["sha256"] == hashlib.sha256(messy.read_bytes()).hexdigest()
    for name, content in _bytes(prepared).items():
        assert manifest["outputs"][name]["sha256"] == hashlib.sha256(content).hexdigest()
    metadata = pq.read_metadata(prepared / "prepare/train.parquet").metadata
    assert metadata[b"bayesnde.schema"] == b"rows"
    assert metadata[b"bayesnde.schema_version"] == b"1"
    assert metadata[b"bayesnde.run_id"] == manifest["run_id"].encode()


def test_test_rows_neither_move_nor_choose_the_scaling(bayesnde: Callable, tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=(120, 2))
    words = np.array(["train", "validation", "test", "train"] * 30)

    def prepare(name: str, moved: str) -> tuple[object, str]:
        x = np.where((words == moved)[:, None], values * 3.0 + 7.0, values)
        pa.csv.write_csv(pa.table({"a": x[:, 0], "b": x[:, 1], "s": words}), tmp_path / f"{name}.csv")
        outcome = bayesnde("prepare", tmp_path / f"{name}.csv", "--split-column", "s", "--run", tmp_path / name)
        assert outcome.code == 0, outcome.err
        said = next(line for line in outcome.err.splitlines() if line.startswith("scaling: "))
        return read_schema(RunLayout(tmp_path / name)).to_json()["features"], said

    before = prepare("before", "")
    for name, table in _tables(tmp_path / "before").items():
        assert set(words[table["row_id"].to_numpy()]) == {name}
    assert prepare("test-moved", "test") == before
    # Negative control: training rows do.
    after = prepare("train-moved", "train")
    assert after[0] != before[0]
    assert after[1] != before[1]


def test_missing_cells_are_listed_or_dropped_and_empty_rows_left_out(bayesnde: Callable, tmp_path: Path) -> None:
    lines = ["x,y"] + [f"{index * 0.7 % 3},{'' if index % 10 == 0 else index * 0.3 % 2}" for index in range(100)]
    (tmp_path / "d.csv").write_text("\n".join([*lines, ",", ","]) + "\n")
    assert bayesnde("prepare", tmp_path / "d.csv", *PLAIN, "--run", tmp_path / "r").code == 2
    outcome = bayesnde("prepare", tmp_path / "d.csv", "--missing", "drop", *PLAIN, "--run", tmp_path / "r")
    assert outcome.code == 0
    assert "2 rows without any cell left out\n10 rows with missing cells dropped\n" in outcome.err
    row_ids = pa.concat_tables(_tables(tmp_path / "r").values())["row_id"].to_pylist()
    assert sorted(row_ids) == [index for index in range(100) if index % 10]


def test_glitches_and_constant_columns_go_when_asked(bayesnde: Callable, tmp_path: Path) -> None:
    values = np.column_stack([np.random.default_rng(4).normal(size=200), np.full(200, 5.0)])
    values[7, 0] = 1e6
    np.save(tmp_path / "d.npy", values)
    options = ("--max-robust-z", "100", "--drop-constant", *PLAIN)
    outcome = bayesnde("prepare", tmp_path / "d.npy", *options, "--run", tmp_path / "r")
    assert "1 row dropped by --max-robust-z 100" in outcome.err
    assert 7 not in pa.concat_tables(_tables(tmp_path / "r").values())["row_id"].to_pylist()
    assert read_schema(RunLayout(tmp_path / "r")).roles.features == ("c1",)


def test_warnings_name_duplicates_dependent_columns_spikes_and_row_numbers(bayesnde: Callable, tmp_path: Path) -> None:
    x = np.random.default_rng(6).normal(size=100)
    x[1] = x[0]
    pa.csv.write_csv(pa.table({"a": x, "b": np.round(3 * x, 3)}), tmp_path / "d.csv")
    outcome = bayesnde("prepare", tmp_path / "d.csv", *PLAIN, "--run", tmp_path / "r")
    assert outcome.code == 0
    assert "warning: 1 row repeats an earlier row exactly" in outcome.err
    assert "warning: column 'b' is (nearly) a linear function of a" in outcome.err
    assert "use --drop b" in outcome.err
    spike = np.where(np.arange(100) < 40, 0.25, x)
    all_but_one = np.where(np.arange(100) < 99, 0.25, x)
    pa.csv.write_csv(pa.table({"n": range(100), "b": spike, "c": all_but_one}), tmp_path / "n.csv")
    numbered = bayesnde("prepare", tmp_path / "n.csv", *PLAIN, "--scale-on", "all", "--run", tmp_path / "n")
    assert numbered.code == 0, numbered.err
    assert "warning: column 'n' numbers the rows" in numbered.err
    assert "warning: 40% of the rows have b = 0.25" in numbered.err
    assert "warning: 99% of the rows have c = 0.25" in numbered.err


def test_the_tables_open_in_duckdb(prepared: Path) -> None:
    import duckdb

    file = prepared / "prepare/train.parquet"
    expected = pq.read_table(file)
    rows = duckdb.connect().execute(f"select count(*), sum(size), max(x_scaled[1]) from '{file}'").fetchone()
    largest = _matrix(expected)[:, 0].max()
    assert rows == (324, pytest.approx(sum(expected["size"].to_pylist())), pytest.approx(largest))


def test_ids_noise_and_messages_follow_the_position_in_the_file(
    bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the first batch, and after dropped rows."""
    monkeypatch.setattr(survey, "MAX_BATCH_ROWS", 100)
    n_rows, bad, dropped = 300, 260, {5, 70, 200}
    counts = np.random.default_rng(0).poisson(4.0, n_rows)
    cells = ["" if row in dropped else str(count) for row, count in enumerate(counts)]
    labels = ["1" if row % 50 == 0 else "maybe" if row == bad else "0" for row in range(n_rows)]
    lines = [f"{cell},{row % 7},{label}" for row, (cell, label) in enumerate(zip(cells, labels, strict=True))]
    (tmp_path / "d.csv").write_text("\n".join(["n,m,o", *lines]) + "\n")
    options = ("--missing", "drop", "--seed", "3", *PLAIN, "--run", tmp_path / "r")
    refused = bayesnde("prepare", tmp_path / "d.csv", "--outlier-label", "o", *options)
    assert refused.code == 2
    assert f"is neither 0 nor 1 in row {bad + 1}" in refused.err
    assert bayesnde("prepare", tmp_path / "d.csv", "--drop", "o", *options).code == 0
    table = pa.concat_tables(_tables(tmp_path / "r").values()).sort_by("row_id")
    row_ids = table["row_id"].to_numpy()
    assert row_ids.tolist() == [row for row in range(n_rows) if row not in dropped]
    assert np.array_equal(table["n"].to_numpy(), counts[row_ids])
    feature = read_schema(RunLayout(tmp_path / "r")).features[0]
    fraction = uniform_at(derive_seed(3, "prepare", "dequantize", "n"), row_ids)
    expected, _ = feature.map.forward(counts[row_ids].astype(float), fraction)
    assert np.array_equal(_matrix(table)[:, 0], expected.astype(np.float32))


# The choice of `--scale auto`: the scaling in which validation rows are likelier.


def _kinds(run: Path) -> set[str]:
    """The kinds of the columns' maps."""
    return {feature["map"]["kind"] for feature in json.loads((run / "prepare/schema.json").read_text())["features"]}


@pytest.mark.parametrize(
    ("simulated", "kind", "word"),
    [(["involute", "--rows", 3000], "affine", "better"), (["gmm", "--dim", 3, "--rows", 600], "mixture", "worse")],
)
def test_a_spiral_is_left_as_it_is_and_independent_columns_are_not(
    bayesnde: Callable, tmp_path: Path, simulated: list, kind: str, word: str
) -> None:
    assert bayesnde("simulate", *simulated, "--out", tmp_path / "d.csv").code == 0
    outcome = bayesnde("prepare", tmp_path / "d.csv", "--run", tmp_path / "auto")
    assert outcome.code == 0, outcome.err
    assert _kinds(tmp_path / "auto") == {kind}
    assert f"nats {word} with standard than with marginal" in outcome.err
    scale = {"affine": "standard", "mixture": "marginal"}[kind]
    asked = bayesnde("prepare", tmp_path / "d.csv", "--run", tmp_path / "asked", "--scale", scale)
    assert "nats" not in asked.err
    chosen, given = _bytes(tmp_path / "auto"), _bytes(tmp_path / "asked")
    # the tables carry the run's own id
    assert {name: content == given[name] for name, content in chosen.items() if name != "validation.parquet"} == {
        "schema.json": True,
        "train.parquet": False,
        "test.parquet": False,
    }


def test_a_wide_table_is_scaled_by_its_margins(bayesnde: Callable, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.random.default_rng(0).integers(0, 2, (80, 31)))
    outcome = bayesnde("prepare", tmp_path / "wide.npy", "--run", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert _kinds(tmp_path / "run") == {"lattice"}
    assert "with standard" not in outcome.err


def test_columns_that_only_the_margins_can_scale_are_scaled_by_them(bayesnde: Callable, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    x[7, 0] = 1e12  # one row takes all digits of float32 away from the others
    np.save(tmp_path / "far.npy", x)
    outcome = bayesnde("prepare", tmp_path / "far.npy", "--run", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert _kinds(tmp_path / "run") == {"mixture"}


# Killed, stopped, and run by several processes at once: the same bytes or nothing.

COMMAND = [sys.executable, "-m", "bayesnde_cli", "prepare"]


@pytest.mark.slow
def test_a_killed_run_is_no_result_and_the_next_ones_at_once_give_the_same_bytes(
    messy: Path, prepared: Path, tmp_path: Path
) -> None:
    command = [*COMMAND, str(messy), *ROLES, *MARGINAL, "--run", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("read as: CSV")  # now it is at work
    process.kill()
    process.communicate()
    assert not (tmp_path / "run/prepare/manifest.json").exists()
    crowd = [subprocess.Popen([*command, "-q"], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ends = [(process.communicate()[1], process.returncode) for process in crowd]
    assert 0 in [code for _, code in ends]
    for err, code in ends:
        assert (code, err) == (0, "") or err.startswith("error: prepare is being made by another process")
    assert _bytes(tmp_path / "run") == _bytes(prepared)  # and no leftover: the names agree, too


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_75_and_leaves_nothing(number: signal.Signals, messy: Path, tmp_path: Path) -> None:
    command = [*COMMAND, str(messy), *ROLES, "--run", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "read as: CSV, separated by ',', header, utf-8\n"  # now it is at work
    process.send_signal(number)
    err = process.communicate()[1]
    assert process.returncode == 75
    assert err.endswith(
        f"error: stopped by {number.name}\n  nothing half-written was left behind\n"
        "hint: run the same command again to resume\n"
    )
    assert not (tmp_path / "run").exists()
