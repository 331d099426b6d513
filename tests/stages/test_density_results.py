"""`density` with a stand-in for the engine: the columns, the rows of any file, and what is refused."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import fake_engine
from scoring_runs import SMALL, other_set, table_bytes


def test_density_of_the_test_rows(bayesnde: Callable, engines: list, run: Path) -> None:
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    table = pq.read_table(run / "density/test/density.parquet")
    assert table.column_names == [
        "row_id", "log_density", "log_density_scaled", "mc_se", "log_density_is", "mc_se_is", "overlap", "ess_min",
        "rhat_max", "missed_mass", "acceptance", "divergences", "bridge_iterations", "converged", "reliable", "verdict",
        "n_observed", "n_gradients", "n_likelihoods", "name", "k", "true_log_density",
    ]  # fmt: skip
    test = pq.read_table(run / "prepare/test.parquet")
    for name in ("row_id", "name", "k", "true_log_density"):
        assert table[name].to_pylist() == test[name].to_pylist()
    jacobian = test["log_jacobian"].to_numpy()
    for name, more in (("log_density", 0.0), ("log_density_is", 0.25)):
        assert np.allclose(table[name].to_numpy(), table["log_density_scaled"].to_numpy() + jacobian + more)
    assert set(table["n_observed"].to_pylist()) == {3}
    mean, n_reliable = table["log_density"].to_numpy().mean(), sum(table["reliable"].to_pylist())
    n_rows = table.num_rows
    assert outcome.out == (
        f"{run}/density/test/density.parquet: {n_rows} rows, mean log-density {mean:.4f} (units of the file), "
        f"{n_reliable} reliable\n"
    )
    assert outcome.err == (
        "verdicts\nverdict     rows  share\n"
        f"reliable      {n_reliable}  {100 * n_reliable / n_rows:.1f}%\n"
        f"wide error    {n_rows - n_reliable}  {100 - 100 * n_reliable / n_rows:.1f}%\n"
    )
    manifest = json.loads((run / "density/test/manifest.json").read_text())
    assert manifest["device"] == "fake"
    assert manifest["result"]["verdicts"] == {"reliable": n_reliable, "wide error": n_rows - n_reliable}
    assert set(manifest["inputs"]) == {"prepare/schema.json", "prepare/test.parquet", "refine/weights/model.npz",
                                       "refine/latents.parquet"}  # fmt: skip
    assert not (run / "posterior").exists()
    assert engines[0].n_real == [8] * (n_rows // 8) + [n_rows % 8]  # the engine knows which rows fill the last one up


def test_rows_without_an_estimate_are_counted_and_left_out_of_the_mean(
    bayesnde: Callable, engines: list, run: Path
) -> None:
    fake_engine.install(loses_first=True)
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    log_density = pq.read_table(run / "density/test/density.parquet")["log_density"].to_numpy()
    mean = log_density[np.isfinite(log_density)].mean()
    assert f"mean log-density {mean:.4f} (units of the file; without 8 rows where it is not finite), " in outcome.out
    drawn = bayesnde("posterior", "--run", run, *SMALL)
    rhat = pq.read_table(run / "posterior/test/diagnostics.parquet")["rhat_max"].to_numpy()
    assert f"R-hat up to {rhat[np.isfinite(rhat)].max():.3f} (not finite for 8 rows), " in drawn.out
    lost = bayesnde("density", "--run", run, *SMALL[2:], "--block-rows", "1", "--restart")
    assert f"{len(log_density)} rows, mean log-density not finite (units of the file; without " in lost.out


def test_again_is_up_to_date_and_other_settings_are_listed(bayesnde: Callable, engines: list, run: Path) -> None:
    first = bayesnde("density", "--run", run, *SMALL)
    again = bayesnde("density", "--run", run, *SMALL, "--threads", "1")
    assert (again.code, again.out) == (0, first.out.replace("\n", " (up to date)\n"))
    assert len(engines) == 1
    before = table_bytes(run)
    other = bayesnde("density", "--run", run, *SMALL, "--target-se", "0.5")
    assert other.code == 2
    assert other.err == (
        "error: density/test was made with other settings or data\n  settings.target_se: 0.05 -> 0.5\n"
        f"hint: run `bayesnde density --run {run} --restart` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`\n"
    )
    assert table_bytes(run) == before
    assert bayesnde("density", "--run", run, *SMALL, "--seed", "5", "--restart").code == 0
    assert table_bytes(run) != before


def test_a_redone_refinement_makes_it_stale(bayesnde: Callable, engines: list, run: Path) -> None:
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert bayesnde("posterior", "--run", run, *SMALL, "--shard", "1/3").code == 0  # begun
    fake_engine.pretend_refined(run, b"others!")
    for stage in ("density", "posterior"):
        outcome = bayesnde(stage, "--run", run, *SMALL)
        assert outcome.code == 3
        assert outcome.err == (
            f"error: {stage}/test was made from files that have changed since\n"
            f"  refine/latents.parquet is not the one that {stage}/test read\n"
            f"  refine/weights/model.npz is not the one that {stage}/test read\n"
            f"hint: run `bayesnde {stage} --run {run} --restart`\n"
        )
        assert bayesnde(stage, "--run", run, *SMALL, "--restart", "--shard", "1/2").code == 0
        assert bayesnde(stage, "--run", run, *SMALL, "--restart", "--shard", "2/2").code == 0  # joins the first
        assert bayesnde(stage, "--run", run, *SMALL).code == 0
    shutil.rmtree(run / "refine")
    outcome = bayesnde("density", "--run", run, *SMALL)
    assert outcome.code == 3
    assert outcome.err.startswith("error: refine is not there, or not complete\n")


def test_rows_of_a_file_are_those_of_the_test_set(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> None:
    """The same rows at the same place of a file have the same noise and Jacobian; labels are what the file has."""
    text = (Path(json.loads((run / "prepare/manifest.json").read_text())["inputs"]["data-0"]["path"])).read_text()
    (tmp_path / "new file.csv").write_text(text)
    outcome = bayesnde("density", tmp_path / "new file.csv", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    name = other_set(run)
    assert name.startswith("new-file-")
    rows = pq.read_table(run / f"density/{name}/rows.parquet")
    test = pq.read_table(run / "prepare/test.parquet")
    ids = test["row_id"].to_pylist()
    for column in ("x_scaled", "log_jacobian", "name", "k", "true_log_density"):
        assert rows[column].take(ids).to_pylist() == test[column].to_pylist(), column
    assert pq.read_table(run / f"density/{name}/density.parquet")["name"].to_pylist() == rows["name"].to_pylist()


def test_equal_rows_give_equal_bits_in_any_file(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> None:
    text = "a,b,n,k\n0.1,1.0,3,u\n0.2,2.0,4,v\n"
    scored = []
    for name, separator in (("one.csv", ","), ("other.tsv", "\t")):
        (tmp_path / name).write_text(text.replace(",", separator))
        outcome = bayesnde("density", tmp_path / name, "--run", run, *SMALL, "--out", "-", "-q")
        assert outcome.code == 0, outcome.err
        scored.append(outcome.out)
    assert scored[0] == scored[1]
    assert len([path for path in (run / "density").iterdir() if path.is_dir()]) == 2  # none is a copy of the other


CELLS = "k,n,b,a,other\nu,3,1.5,0.25,?\nv,,2.5,,?\nu,,,,?\nu,4,,-1.0,?\n"


def test_missing_cells_leave_the_density_of_the_others(
    bayesnde: Callable, engines: list, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "gaps.csv").write_text(CELLS)
    outcome = bayesnde("density", tmp_path / "gaps.csv", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    assert "not used: other\n" in outcome.err
    name = other_set(run)
    table = pq.read_table(run / f"density/{name}/density.parquet").to_pylist()
    assert [row["n_observed"] for row in table] == [3, 1, 0, 2]
    assert [row["k"] for row in table] == ["u", "v", "u", "u"]
    assert "name" not in table[0]
    nothing = table[2]
    assert (nothing["log_density"], nothing["log_density_scaled"], nothing["mc_se"]) == (0.0, 0.0, 0.0)
    assert (nothing["reliable"], nothing["converged"], nothing["verdict"]) == (True, True, "no cells")
    (tmp_path / "whole.csv").write_text("a,b,n,k\n9,2.5,9,v\n9,2.5,9,v\n")
    assert bayesnde("density", tmp_path / "whole.csv", "--run", run, *SMALL).code == 0
    whole = next((run / "density").glob("whole-*"))
    scaled = pq.read_table(whole / "rows.parquet")["x_scaled"].to_pylist()[1]
    gaps = pq.read_table(run / f"density/{name}/rows.parquet")
    assert np.isnan(gaps["x_scaled"].to_pylist()[1]).tolist() == [True, False, True]
    assert gaps["x_scaled"].to_pylist()[1][1] == scaled[1]


def test_the_mean_is_that_of_whole_rows(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> None:
    (tmp_path / "gaps.csv").write_text(CELLS + "v,2,0.5,1.5,?\n")
    command = ["density", tmp_path / "gaps.csv", "--run", run, *SMALL]
    outcome = bayesnde(*command)
    rows = pq.read_table(run / "density" / other_set(run) / "density.parquet").to_pylist()
    mean = np.mean([row["log_density"] for row in rows if row["n_observed"] == 3])
    left_out = "without 3 rows with missing cells"
    assert f": 5 rows, mean log-density {mean:.4f} (units of the file; {left_out}), " in outcome.out
    machine = json.loads(bayesnde(*command, "--json").out)
    assert (machine["mean_log_density"], machine["n_incomplete"]) == (pytest.approx(mean), 3)
    fake_engine.install(loses_first=True)
    some = bayesnde(*command, "--restart").out
    assert f"(units of the file; {left_out} and 1 row where it is not finite), " in some


def test_without_a_whole_row_there_is_no_mean(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> None:
    (tmp_path / "gaps.csv").write_text("k,n,b,a\nu,3,1.5,\nv,,,\n")
    command = ["density", tmp_path / "gaps.csv", "--run", run, *SMALL]
    assert ": 2 rows, no mean log-density (every row has missing cells), " in bayesnde(*command).out
    machine = json.loads(bayesnde(*command, "--json").out)
    assert (machine["mean_log_density"], machine["n_incomplete"]) == (None, 2)


def test_several_files_and_stdin_are_one_set_each(bayesnde: Callable, engines: list, run: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("a,b,n,k\n0.1,1.0,3,u\n0.2,2.0,4,v\n")
    (tmp_path / "two.csv").write_text("k,n,b,a\nu,5,3.0,0.3\n")
    assert bayesnde("density", tmp_path / "one.csv", tmp_path / "two.csv", "--run", run, *SMALL).code == 0
    name = other_set(run)
    assert name.startswith("one-")
    assert pq.read_table(run / f"density/{name}/density.parquet")["k"].to_pylist() == ["u", "v", "u"]
    together = (tmp_path / "one.csv").read_text() + "0.3,3.0,5,u\n"
    command = [sys.executable, fake_engine.__file__, "{}", "density", "-", "--run", str(run), *SMALL]
    command += ["--out", "-", "--format", "csv", "--columns", "log_density,k,row_id", "-q"]
    done = subprocess.run(command, input=together, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "log_density,k,row_id"
    assert [line.split(",")[1:] for line in lines[1:]] == [["u", "0"], ["v", "1"], ["u", "2"]]
    piped = next(path for path in (run / "density").iterdir() if path.name.startswith("stdin-"))
    staged = [pq.read_table(folder / "rows.parquet") for folder in (piped, run / "density" / name)]
    assert staged[0].equals(staged[1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,k\n1,2,u\n", "error: the file lacks 1 of the model's 4 columns\n  missing: n\n"),
        ("a,b,n,k\n1,inf,3,u\n", "error: column 'b' has an infinity in row 1\n"),
        ("a,b,n,k\n1,word,3,u\n", "error: column 'b' holds text, but the model knows it as numbers\n"),
        ("a,b,n,k\n1,2,3,\n", "error: condition 'k' has an unseen class in row 1\n"),
        ("a,b,n,k\n", "bad.csv holds a header and no rows\n"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_and_leaves_nothing(
    content: str, message: str, bayesnde: Callable, engines: list, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_text(content)
    outcome = bayesnde("density", tmp_path / "bad.csv", "--run", run, *SMALL)
    assert outcome.code == 2
    assert message in outcome.err
    assert not (run / "density").exists()


def test_staged_rows_that_are_damaged_are_read_again(
    bayesnde: Callable, engines: list, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "gaps.csv").write_text(CELLS)
    assert bayesnde("density", tmp_path / "gaps.csv", "--run", run, *SMALL, "--shard", "2/2").code == 0
    rows = run / "density" / other_set(run) / "rows.parquet"
    whole = rows.read_bytes()
    rows.write_bytes(whole[:-20])
    assert bayesnde("density", tmp_path / "gaps.csv", "--run", run, *SMALL).code == 0
    assert rows.read_bytes() == whole
