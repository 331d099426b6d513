"""`prepare` end to end: what it writes, when it writes, and that it writes the same again."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesnde_cli.data.schema import Schema

SPLITS = ("train", "validation", "test")


@pytest.fixture
def messy(tmp_path: Path) -> Path:
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
    path = tmp_path / "messy.csv"
    pa.csv.write_csv(pa.table(columns), path)
    return path


ROLES = ("--condition", "class", "--outlier-label", "odd", "--id", "name", "--drop", "note")


def _tables(run: Path) -> dict[str, pa.Table]:
    return {name: pq.read_table(run / "prepare" / f"{name}.parquet") for name in SPLITS}


def _bytes(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "prepare").iterdir() if path.name != "manifest.json"}


def _matrix(table: pa.Table) -> np.ndarray:
    return np.array(table["x_scaled"].to_pylist(), np.float32)


def test_every_row_is_in_one_split_with_its_values_labels_and_scaled_features(
    bayesnde: Callable, messy: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r"
    outcome = bayesnde("prepare", messy, *ROLES, "--run", run)
    assert outcome.code == 0
    assert outcome.out == f"{run}/prepare: 324 training, 36 validation and 40 test rows, 3 features\n"
    together = pa.concat_tables(_tables(run).values()).sort_by("row_id")
    assert together["row_id"].to_pylist() == list(range(400))
    original = pa.csv.read_csv(messy)
    for name in ("size", "count", "colour", "class", "odd", "name", "true_log_density"):
        assert together[name].to_pylist() == original[name].to_pylist(), name
    assert together.schema.names == [
        *("row_id", "size", "count", "colour", "name", "class", "odd", "true_log_density"),
        *("x_scaled", "log_jacobian"),
    ]
    assert together.schema.field("x_scaled").type == pa.list_(pa.float32(), 3)


def test_scaled_training_features_are_standard_normal(bayesnde: Callable, messy: Path, tmp_path: Path) -> None:
    bayesnde("prepare", messy, *ROLES, "--run", tmp_path / "r")
    scaled = _matrix(_tables(tmp_path / "r")["train"])
    assert np.all(np.abs(scaled.mean(axis=0)) < 0.15)
    assert np.all(np.abs(scaled.std(axis=0) - 1) < 0.15)
    # Negative control: without scaling they are not.
    bayesnde("prepare", messy, *ROLES, "--scale", "none", "--run", tmp_path / "none")
    assert np.any(np.abs(_matrix(_tables(tmp_path / "none")["train"]).mean(axis=0)) > 0.5)


@pytest.mark.parametrize("scale", ["marginal", "standard", "minmax", "none"])
def test_log_densities_agree_in_both_units_through_the_jacobian(scale: str, bayesnde: Callable, tmp_path: Path) -> None:
    # Integrate exp(log_jacobian) * phi(x_scaled) over a column: with the maps' own density it is 1 for `marginal`.
    # For all: the mean of the change of log-volume must be that of finite differences between neighbouring rows.
    rng = np.random.default_rng(1)
    values = np.sort(rng.gamma(3.0, size=4000))
    (tmp_path / "d.csv").write_text("v\n" + "\n".join(map(repr, values.tolist())) + "\n")
    bayesnde("prepare", tmp_path / "d.csv", "--scale", scale, "--run", tmp_path / "r")
    table = pa.concat_tables(_tables(tmp_path / "r").values()).sort_by("row_id")
    raw, scaled = table["v"].to_numpy(), _matrix(table)[:, 0].astype(float)
    middle = slice(200, 3800)
    step = 50  # far enough apart that float32 does not matter
    slopes = (scaled[step:] - scaled[:-step])[middle] / (raw[step:] - raw[:-step])[middle]
    stored = table["log_jacobian"].to_numpy()
    between = 0.5 * (stored[step:] + stored[:-step])[middle]
    assert np.max(np.abs(np.log(slopes) - between)) < 0.05
    assert abs(np.mean(np.log(slopes) - between)) < 0.002


def test_the_same_input_seed_and_settings_give_the_same_bytes(bayesnde: Callable, messy: Path, tmp_path: Path) -> None:
    for run in ("one", "two"):
        assert bayesnde("prepare", messy, *ROLES, "--run", tmp_path / run).code == 0
    assert _bytes(tmp_path / "one") == _bytes(tmp_path / "two")
    assert set(_bytes(tmp_path / "one")) == {"train.parquet", "validation.parquet", "test.parquet", "schema.json"}
    bayesnde("prepare", messy, *ROLES, "--seed", "1", "--run", tmp_path / "other")
    assert _bytes(tmp_path / "other")["train.parquet"] != _bytes(tmp_path / "one")["train.parquet"]


def test_all_formats_of_one_table_give_the_same_rows(bayesnde: Callable, tmp_path: Path) -> None:
    from scipy.io import savemat

    values = np.random.default_rng(2).normal(size=(200, 3))
    values[:, 2] = np.rint(3 * values[:, 2])
    np.save(tmp_path / "d.npy", values)
    np.savez(tmp_path / "d.npz", X=values)
    savemat(tmp_path / "d.mat", {"X": values})
    table = pa.table({f"c{index + 1}": values[:, index] for index in range(3)})
    pq.write_table(table, tmp_path / "d.parquet")
    pa.csv.write_csv(table, tmp_path / "d.csv")
    lines = [" ".join(map(repr, row)) for row in values.tolist()]
    (tmp_path / "d.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "comma.csv").write_text(
        "c1;c2;c3\n" + "\n".join(line.replace(" ", ";").replace(".", ",") for line in lines) + "\n"
    )
    attributes = "".join(f"@attribute c{index + 1} numeric\n" for index in range(3))
    (tmp_path / "d.arff").write_text(
        f"@relation r\n{attributes}@data\n" + "\n".join(line.replace(" ", ",") for line in lines) + "\n"
    )
    files = ["d.npy", "d.npz", "d.mat", "d.parquet", "d.csv", "d.txt", "comma.csv", "d.arff"]
    for file in files:
        assert bayesnde("prepare", tmp_path / file, "--run", tmp_path / f"run-{file}").code == 0, file
    first = _tables(tmp_path / "run-d.npy")["train"]
    for file in files[1:]:
        assert _tables(tmp_path / f"run-{file}")["train"].equals(first), file


def test_stdin_and_files_in_parts_give_the_rows_of_the_whole_file(
    bayesnde: Callable, messy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    lines = messy.read_text().splitlines(keepends=True)
    (tmp_path / "a.csv").write_text("".join(lines[:150]))
    (tmp_path / "b.csv").write_text(lines[0] + "".join(lines[150:]))
    bayesnde("prepare", messy, *ROLES, "--run", tmp_path / "whole")
    bayesnde("prepare", tmp_path / "a.csv", tmp_path / "b.csv", *ROLES, "--run", tmp_path / "parts")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(messy.read_bytes())))
    assert bayesnde("prepare", "-", *ROLES, "--run", tmp_path / "stdin").code == 0
    whole = _tables(tmp_path / "whole")
    for run in ("parts", "stdin"):
        for name, table in _tables(tmp_path / run).items():
            assert table.equals(whole[name])
    # The same content is the same run, wherever it came from.
    assert _bytes(tmp_path / "stdin") == _bytes(tmp_path / "whole")


def test_a_second_run_is_up_to_date_and_other_settings_are_listed(
    bayesnde: Callable, messy: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r"
    bayesnde("prepare", messy, *ROLES, "--run", run)
    again = bayesnde("prepare", messy, *ROLES, "--run", run)
    assert (again.code, again.err) == (0, "")
    assert again.out.endswith("3 features (up to date)\n")
    other = bayesnde("prepare", messy, *ROLES, "--scale", "standard", "--seed", "4", "--run", run)
    assert other.code == 2
    assert other.err == (
        "error: prepare was made with other settings or data\n"
        "  settings.scale: 'auto' -> 'standard'\n"
        "  settings.seed: 0 -> 4\n"
        f"hint: run `bayesnde prepare DATA --run {run} --restart` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`\n"
    )
    before = _bytes(run)
    assert bayesnde("prepare", messy, *ROLES, "--scale", "standard", "--run", run, "--restart").code == 0
    assert _bytes(run) != before


def test_a_damaged_output_is_named_with_the_command_that_repairs_it(
    bayesnde: Callable, messy: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r"
    bayesnde("prepare", messy, *ROLES, "--run", run)
    good = _bytes(run)
    (run / "prepare/test.parquet").write_bytes(b"PAR1")
    outcome = bayesnde("prepare", messy, *ROLES, "--run", run)
    assert outcome.code == 3
    assert outcome.err == (
        f"error: {run}/prepare/test.parquet is not what prepare wrote\n"
        f"  4 bytes instead of {len(good['test.parquet'])}\n"
        f"hint: run `bayesnde prepare DATA --run {run} --restart`\n"
    )
    assert bayesnde("prepare", messy, *ROLES, "--run", run, "--restart").code == 0
    assert _bytes(run) == good


def test_the_manifest_records_what_ran_and_what_came_out(bayesnde: Callable, messy: Path, tmp_path: Path) -> None:
    import hashlib

    run = tmp_path / "r"
    bayesnde("prepare", messy, *ROLES, "--seed", "9", "--run", run)
    manifest = json.loads((run / "prepare/manifest.json").read_text())
    assert manifest["config"]["condition"] == "class"
    assert manifest["seed"] == 9
    assert manifest["inputs"]["data-0"]["sha256"] == hashlib.sha256(messy.read_bytes()).hexdigest()
    for name, content in _bytes(run).items():
        assert manifest["outputs"][name]["sha256"] == hashlib.sha256(content).hexdigest()
    metadata = pq.read_metadata(run / "prepare/train.parquet").metadata
    assert metadata[b"bayesnde.schema"] == b"rows"
    assert metadata[b"bayesnde.schema_version"] == b"1"
    assert metadata[b"bayesnde.run_id"] == manifest["run_id"].encode()


@given(shift=st.floats(-50.0, 50.0), factor=st.floats(0.5, 20.0))
@settings(max_examples=5, deadline=None)
def test_test_rows_do_not_move_the_scaling(
    shift: float, factor: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from bayesnde_cli.cli.main import run as run_cli

    folder = tmp_path_factory.mktemp("move")
    values = np.random.default_rng(3).normal(size=(300, 2))

    def maps(rows: np.ndarray, name: str) -> object:
        np.save(folder / f"{name}.npy", rows)
        assert run_cli(["prepare", str(folder / f"{name}.npy"), "--run", str(folder / name), "--quiet"]) == 0
        return json.loads((folder / name / "prepare/schema.json").read_text())["features"]

    before = maps(values, "before")
    split_rows = {name: table["row_id"].to_numpy() for name, table in _tables(folder / "before").items()}
    moved = values.copy()
    moved[split_rows["test"]] = moved[split_rows["test"]] * factor + shift + 0.01
    assert maps(moved, "test-moved") == before
    # Negative control: training rows do.
    moved = values.copy()
    moved[split_rows["train"]] = moved[split_rows["train"]] * factor + shift + 0.01
    assert maps(moved, "train-moved") != before


def test_missing_cells_are_listed_or_dropped(bayesnde: Callable, tmp_path: Path) -> None:
    lines = ["x,y"] + [f"{index * 0.7 % 3},{'' if index % 10 == 0 else index * 0.3 % 2}" for index in range(100)]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    assert bayesnde("prepare", tmp_path / "d.csv", "--run", tmp_path / "r").code == 2
    outcome = bayesnde("prepare", tmp_path / "d.csv", "--missing", "drop", "--run", tmp_path / "r")
    assert outcome.code == 0
    assert "10 rows with missing cells dropped" in outcome.err
    row_ids = pa.concat_tables(_tables(tmp_path / "r").values())["row_id"].to_pylist()
    assert sorted(row_ids) == [index for index in range(100) if index % 10]


def test_glitches_go_by_the_robust_rule(bayesnde: Callable, tmp_path: Path) -> None:
    values = np.random.default_rng(4).normal(size=200)
    values[7] = 1e6
    np.save(tmp_path / "d.npy", values)
    outcome = bayesnde("prepare", tmp_path / "d.npy", "--max-robust-z", "100", "--run", tmp_path / "r")
    assert "1 row dropped by --max-robust-z 100" in outcome.err
    assert 7 not in pa.concat_tables(_tables(tmp_path / "r").values())["row_id"].to_pylist()


def test_a_split_column_decides(bayesnde: Callable, tmp_path: Path) -> None:
    words = (["train"] * 6 + ["validation", "test"]) * 10
    rows = "\n".join(f"{index * 0.7 % 3},{word}" for index, word in enumerate(words))
    (tmp_path / "d.csv").write_text(f"x,part\n{rows}\n")
    assert bayesnde("prepare", tmp_path / "d.csv", "--split-column", "part", "--run", tmp_path / "r").code == 0
    for name, table in _tables(tmp_path / "r").items():
        assert {words[row_id] for row_id in table["row_id"].to_pylist()} == {name}


def test_warnings_name_duplicates_dependent_columns_and_row_numbers(bayesnde: Callable, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=100)
    x[1] = x[0]
    lines = [f"{value!r},{3 * value:.3f}" for value in x.tolist()]
    (tmp_path / "d.csv").write_text("a,b\n" + "\n".join(lines) + "\n")
    outcome = bayesnde("prepare", tmp_path / "d.csv", "--run", tmp_path / "r")
    assert outcome.code == 0
    assert "warning: 1 row repeats an earlier row exactly" in outcome.err
    assert "warning: column 'b' is (nearly) a linear function of a" in outcome.err
    assert "use --drop b" in outcome.err
    (tmp_path / "n.csv").write_text("n,b\n" + "\n".join(f"{i},{v}" for i, v in enumerate(x)) + "\n")
    numbered = bayesnde("prepare", tmp_path / "n.csv", "--run", tmp_path / "n")
    assert "warning: column 'n' numbers the rows" in numbered.err


def test_constant_columns_go_when_asked(bayesnde: Callable, tmp_path: Path) -> None:
    rows = "\n".join(f"{index * 0.7 % 3},5" for index in range(80))
    (tmp_path / "d.csv").write_text(f"x,k\n{rows}\n")
    assert bayesnde("prepare", tmp_path / "d.csv", "--drop-constant", "--run", tmp_path / "r").code == 0
    schema = Schema.from_json(json.loads((tmp_path / "r/prepare/schema.json").read_text()))
    assert schema.roles.features == ("x",)


def test_the_tables_open_in_duckdb_pandas_and_polars(bayesnde: Callable, messy: Path, tmp_path: Path) -> None:
    import duckdb
    import pandas
    import polars

    bayesnde("prepare", messy, *ROLES, "--run", tmp_path / "r")
    file = tmp_path / "r/prepare/train.parquet"
    expected = pq.read_table(file)
    rows = duckdb.sql(f"select count(*), sum(size), max(x_scaled[1]) from '{file}'").fetchall()[0]
    assert rows[0] == 324
    assert rows[1] == pytest.approx(sum(expected["size"].to_pylist()))
    assert rows[2] == pytest.approx(_matrix(expected)[:, 0].max())
    frame = pandas.read_parquet(file)
    assert frame["class"].tolist() == expected["class"].to_pylist()
    assert np.array_equal(np.stack(frame["x_scaled"]), _matrix(expected))
    assert polars.read_parquet(file)["x_scaled"].to_list() == expected["x_scaled"].to_pylist()


def test_a_bad_label_is_named_by_its_own_row_however_far_down(bayesnde: Callable, tmp_path: Path) -> None:
    # Beyond the first batch of 65,536 rows, and after rows that were dropped.
    n_rows, bad = 70_000, 66_000
    cells = ["1" if index % 50 == 0 else "0" for index in range(n_rows)]
    cells[bad] = "maybe"
    values = np.random.default_rng(0).normal(size=n_rows).round(4).astype(str)
    values[[5, 70]] = ""
    (tmp_path / "d.csv").write_text("x,o\n" + "".join(f"{x},{o}\n" for x, o in zip(values, cells, strict=True)))
    outcome = bayesnde(
        "prepare", tmp_path / "d.csv", "--outlier-label", "o", "--missing", "drop", "--run", tmp_path / "r"
    )
    assert outcome.code == 2
    assert f"is neither 0 nor 1 in row {bad + 1:,}" in outcome.err


def test_a_failure_at_the_very_end_keeps_the_older_result(
    bayesnde: Callable, messy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "r"
    bayesnde("prepare", messy, *ROLES, "--run", run)
    before = {path.name: path.read_bytes() for path in (run / "prepare").iterdir()}

    def broken(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bayesnde_cli.artifacts.manifest.write", broken)
    assert bayesnde("prepare", messy, *ROLES, "--seed", "1", "--restart", "--run", run).code == 2
    assert {path.name: path.read_bytes() for path in (run / "prepare").iterdir()} == before


def test_a_long_table_of_integers_makes_a_short_schema(bayesnde: Callable, tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.random.default_rng(0).integers(0, 10**9, 60_000))
    assert bayesnde("prepare", tmp_path / "d.npy", "--run", tmp_path / "r").code == 0
    assert (tmp_path / "r/prepare/schema.json").stat().st_size < 10_000


def test_classes_are_the_same_whatever_the_format_of_the_file(bayesnde: Callable, tmp_path: Path) -> None:
    labels = np.arange(100) % 2 + 1.0
    table = pa.table({"x": np.random.default_rng(0).normal(size=100), "y": labels})
    pq.write_table(table, tmp_path / "d.parquet")
    (tmp_path / "d.csv").write_text("x,y\n" + "".join(f"{x!r},{y:.1f}\n" for x, y in
                                    zip(table["x"].to_pylist(), labels, strict=True)))  # fmt: skip
    for file in ("d.parquet", "d.csv"):
        assert bayesnde("prepare", tmp_path / file, "--condition", "y", "--run", tmp_path / file[2:]).code == 0
        schema = json.loads((tmp_path / file[2:] / "prepare/schema.json").read_text())
        assert schema["classes"] == ["1", "2"]


@pytest.mark.parametrize(("n_equal", "percent"), [(80, 40), (199, 99)])
def test_a_spike_in_a_continuous_column_is_warned_of(
    n_equal: int, percent: int, bayesnde: Callable, tmp_path: Path
) -> None:
    values = np.random.default_rng(0).normal(size=200)
    values[:n_equal] = 0.25
    np.save(tmp_path / "d.npy", values)
    outcome = bayesnde("prepare", tmp_path / "d.npy", "--run", tmp_path / "r")
    assert f"warning: {percent}% of the rows have c1 = 0.25" in outcome.err


def test_rows_without_any_cell_are_left_out(bayesnde: Callable, tmp_path: Path) -> None:
    rows = "".join(f"{index * 0.37 % 1:.4f},{index * 0.61 % 1:.4f}\n" for index in range(80))
    (tmp_path / "d.csv").write_text("x,y\n" + rows + ",\n,\n")
    outcome = bayesnde("prepare", tmp_path / "d.csv", "--run", tmp_path / "r")
    assert outcome.code == 0
    assert "2 rows without any cell left out" in outcome.err
