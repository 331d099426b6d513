"""`warmstart` and `refine` end to end: what they leave, and that they leave the same after any interruption."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.artifacts.arrays import read_arrays

# Small networks and few epochs: the way there is tested, not the fit.
SMALL = ["--width", "16", "--depth", "2", "--column-steps", "40", "--epochs", "12", "--checks", "4",
         "--validation-draws", "16", "--generated-rows", "200"]  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared run with a condition, and with a column of whole numbers, whose noise every epoch draws anew."""
    from bayesnde_cli.cli.main import run

    folder = tmp_path_factory.mktemp("prepared")
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 600)
    x = rng.normal(size=(600, 2)) + 2.0 * label[:, None]
    x[:, 1] = np.round(4.0 * x[:, 1])
    lines = [f"{a!r},{b:.0f},{'uv'[k]}" for (a, b), k in zip(x.tolist(), label, strict=True)]
    (folder / "d.csv").write_text("a,b,k\n" + "\n".join(lines) + "\n")
    assert run(["prepare", str(folder / "d.csv"), "--condition", "k", "--run", str(folder / "run"), "-q"]) == 0
    return folder / "run"


@pytest.fixture
def run(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the prepared run, to work on."""
    import shutil

    return Path(shutil.copytree(prepared, tmp_path / "run"))


def _outputs(run: Path, stage: str) -> dict[str, bytes]:
    names = ("history.parquet", "selection.parquet", "weights/model.npz")
    return {name: (run / stage / name).read_bytes() for name in names}


def _start(run: Path, *options: str, stage: str = "warmstart") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bayesnde_cli", stage, "--run", str(run), *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_both_stages_leave_weights_history_selection_and_latents(bayesnde: Callable, run: Path) -> None:
    outcome = bayesnde("warmstart", "--run", run, *SMALL, "--json")
    assert outcome.code == 0
    result = json.loads(outcome.out)
    refined = bayesnde("refine", "--run", run, "--epochs", "4", "--checks", "2", "--validation-draws", "16")
    assert refined.code == 0, refined.err
    assert refined.out.startswith(f"{run}/refine: epoch ")
    history = pq.read_table(run / "warmstart/history.parquet").to_pylist()
    assert [row["phase"] for row in history] == ["columns"] + ["elbo"] * 12
    assert [row["epoch"] for row in history] == [None, *range(1, 13)]
    assert {"phase", "step", "loss", "negative_log_likelihood", "kl"} <= history[0].keys()
    assert np.isfinite([row["loss"] for row in history]).all()
    selection = pq.read_table(run / "warmstart/selection.parquet").to_pylist()
    assert [row["epoch"] for row in selection] == [None, 3, 6, 9, 12]
    chosen = [row for row in selection if row["is_chosen"]]
    assert [row["epoch"] for row in chosen] == [result["epoch"]]
    recorded = json.loads((run / "warmstart/manifest.json").read_text())["result"]["chosen"]
    assert recorded == {name: chosen[0][name] for name in ("phase", "epoch", "step", "marginal")} | {"by": "marginal"}
    assert chosen[0]["marginal"] >= max(row["marginal"] for row in selection) - 1e-3
    weights, facts = read_arrays(run / "refine/weights/model.npz")
    assert facts["decoder"]["n_in"] == 2
    assert facts["decoder"]["n_classes"] == 2
    assert {name.split("/")[0] for name in weights} == {"decoder", "encoder"}
    latents = pq.read_table(run / "refine/latents.parquet")
    train = pq.read_table(run / "prepare/train.parquet")
    assert latents["row_id"].to_pylist() == train["row_id"].to_pylist()
    assert np.all(np.isfinite(latents["z_mean"].combine_chunks().flatten().to_numpy()))
    status = json.loads(bayesnde("status", "--run", run, "--json").out)
    assert [stage["state"] for stage in status["stages"][:3]] == ["done"] * 3


def test_killed_anywhere_it_ends_with_the_same_weights(run: Path, tmp_path: Path) -> None:
    import shutil

    calm = Path(shutil.copytree(run, tmp_path / "calm"))
    process = _start(calm, *SMALL)
    process.communicate()
    assert process.returncode == 0
    n_resumed = 0
    for n_lines in (1, 2, 3):  # killed after the first, then a later look at the validation rows
        process = _start(run, *SMALL)
        assert process.stderr is not None
        seen = 0
        for line in process.stderr:
            n_resumed += line.startswith("going on after epoch")
            seen += line.startswith("elbo, epoch ")
            if seen >= n_lines:
                process.send_signal(signal.SIGKILL)
                break
        process.communicate()
    process = _start(run, *SMALL)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert n_resumed >= 1
    assert _outputs(run, "warmstart") == _outputs(calm, "warmstart")
    assert sorted(path.name for path in (run / "warmstart").iterdir()) == sorted(
        path.name for path in (calm / "warmstart").iterdir()
    )


def test_a_signal_saves_and_the_next_run_goes_on_to_the_same_end(run: Path, tmp_path: Path) -> None:
    import shutil

    calm = Path(shutil.copytree(run, tmp_path / "calm"))
    _start(calm, *SMALL, "--epochs", "60").communicate()
    process = _start(run, *SMALL, "--epochs", "60")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("elbo, epoch "):
            break
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 75, err
    assert time.monotonic() - started < 10.0
    assert (run / "warmstart/checkpoint/state.npz").exists()
    process = _start(run, *SMALL, "--epochs", "60")
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert "going on after epoch" in err
    assert _outputs(run, "warmstart") == _outputs(calm, "warmstart")


@pytest.mark.parametrize("method", ["write_weights", "forget"])
def test_a_signal_at_a_look_loses_no_weights(
    bayesnde: Callable, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    import shutil

    from bayesnde_cli.errors import Stopped
    from bayesnde_cli.stages.training.checkpoints import Checkpoints

    calm = Path(shutil.copytree(run, tmp_path / "calm"))
    assert bayesnde("warmstart", "--run", calm, *SMALL).code == 0
    done, n_calls = getattr(Checkpoints, method), 0

    def struck(*arguments: object) -> None:
        nonlocal n_calls
        done(*arguments)
        n_calls += 1
        if n_calls % 2 == 0:
            raise Stopped("SIGTERM")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, method, struck)
        for _ in range(2):
            assert bayesnde("warmstart", "--run", run, *SMALL).code == 75
    outcome = bayesnde("warmstart", "--run", run, *SMALL)
    assert outcome.code == 0, outcome.err
    assert "going on after epoch" in outcome.err
    assert _outputs(run, "warmstart") == _outputs(calm, "warmstart")


REFINED = ["--epochs", "6", "--checks", "3", "--validation-draws", "16", "--generated-rows", "200"]


def test_chains_latents_and_step_sizes_survive_a_kill(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    import shutil

    assert bayesnde("warmstart", "--run", run, *SMALL, "--epochs", "2").code == 0
    calm = Path(shutil.copytree(run, tmp_path / "calm"))
    options = [*REFINED, "--latent-update", "posterior", "--burn-in", "2"]
    assert bayesnde("refine", "--run", calm, *options).code == 0
    process = _start(run, *options, stage="refine")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("posterior, epoch 2"):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert not (run / "refine/manifest.json").exists()
    assert bayesnde("refine", "--run", run, *options).code == 0
    assert _outputs(run, "refine") == _outputs(calm, "refine")
    history = pq.read_table(run / "refine/history.parquet").to_pylist()
    assert len(history) == 6
    assert {"acceptance", "lag", "negative_log_likelihood"} <= history[0].keys()
    assert 0.2 < history[-1]["acceptance"] <= 1.0


def test_the_paper_s_two_stages_run_with_every_term_in_the_history(bayesnde: Callable, run: Path) -> None:
    weights = ["adversarial-x", "adversarial-z", "reconstruction-x", "reconstruction-z", "correlation", "marginal-mmd",
               "joint-mmd", "sliced-wasserstein", "log-variance", "squared-variance"]  # fmt: skip
    options = [word for name in weights for word in (f"--{name}-weight", "0.5")]
    warm = bayesnde("warmstart", "--run", run, *SMALL, "--objective", "both", "--egm-steps", "100", "--select", "rank",
                    "--epochs", "3", *options, "--json")  # fmt: skip
    assert warm.code == 0, warm.err
    assert json.loads(warm.out)["selected_by"] == "rank"
    history = pq.read_table(run / "warmstart/history.parquet").to_pylist()
    assert [row["phase"] for row in history] == ["egm"] * 2 + ["elbo"] * 3
    for name in (*weights, "discriminator-x", "discriminator-z", "loss"):
        values = [row[name.replace("-", "_")] for row in history]
        assert np.all(np.isfinite(values[:2])), name
        assert name == "loss" or values[2:] == [None] * 3
    assert [row["step"] for row in history][:2] == [50, 100]
    selection = pq.read_table(run / "warmstart/selection.parquet").to_pylist()
    assert [row["rank"] for row in selection if row["is_chosen"]] == [min(row["rank"] for row in selection)]
    assert not list((run / "warmstart/checkpoint").glob("look-*"))
    terms = ["--mmd-weight", "10", "--correlation-weight", "0.3", "--log-variance-weight", "0.01"]
    refined = bayesnde("refine", "--run", run, *REFINED, "--latent-update", "map", *terms, "--select", "plug-in")
    assert refined.code == 0, refined.err
    history = pq.read_table(run / "refine/history.parquet").to_pylist()
    assert {"mmd", "correlation", "log_variance", "latent_norm"} <= history[0].keys()
    selection = pq.read_table(run / "refine/selection.parquet").to_pylist()
    assert [row["epoch"] for row in selection] == [0.0, 2.0, 4.0, 6.0]  # the warm start is a candidate, too
    best = max(row["plug_in"] for row in selection)
    assert next(row["plug_in"] for row in selection if row["is_chosen"]) == pytest.approx(best, abs=1e-3)
    figures = ("marginal", "rbf_mmd", "symmetric_kl", "sliced_wasserstein", "marginal_wasserstein", "ks", "rank")
    assert all(np.isfinite(row[name]) for row in selection for name in figures)


def test_threads_and_device_are_recorded_and_change_nothing_else(bayesnde: Callable, run: Path) -> None:
    assert bayesnde("warmstart", "--run", run, *SMALL, "--epochs", "1", "--device", "cpu").code == 0
    manifest = json.loads((run / "warmstart/manifest.json").read_text())
    assert manifest["device"].startswith("cpu, ")
    assert manifest["config"]["device"] == "cpu"
    again = bayesnde("warmstart", "--run", run, *SMALL, "--epochs", "1", "--threads", "1")
    assert again.out.endswith("(up to date)\n")


def test_a_stage_before_is_asked_for(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    outcome = bayesnde("warmstart", "--run", tmp_path / "none")
    assert outcome.code == 3
    assert outcome.err == (
        f"error: prepare is not there, or not complete\n  no {tmp_path}/none/prepare/manifest.json\n"
        f"hint: run `bayesnde prepare DATA --run {tmp_path}/none`\n"
    )
    outcome = bayesnde("refine", "--run", run)
    assert outcome.code == 3
    assert outcome.err.endswith(f"hint: run `bayesnde warmstart --run {run}`\n")


def test_other_settings_are_listed_and_a_loss_that_is_not_finite_is_four(bayesnde: Callable, run: Path) -> None:
    assert bayesnde("warmstart", "--run", run, *SMALL).code == 0
    again = bayesnde("warmstart", "--run", run, *SMALL)
    assert (again.code, again.err) == (0, "")
    assert again.out.endswith("(up to date)\n")
    other = bayesnde("warmstart", "--run", run, *SMALL, "--learning-rate", "1e30")
    assert other.code == 2
    assert "settings.learning_rate: 0.001 -> 1e+30" in other.err
    before = _outputs(run, "warmstart")
    failed = bayesnde("warmstart", "--run", run, *SMALL, "--learning-rate", "1e30", "--restart")
    assert failed.code == 4
    assert "error: a loss is not finite in columns, step " in failed.err
    assert _outputs(run, "warmstart") == before


def test_an_interrupted_run_with_other_settings_is_replaced_by_a_restart(bayesnde: Callable, run: Path) -> None:
    process = _start(run, *SMALL, "--epochs", "400")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("elbo, epoch "):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    refused = bayesnde("warmstart", "--run", run, *SMALL)
    assert refused.code == 2
    assert "settings.epochs: 400 -> 12" in refused.err
    assert bayesnde("warmstart", "--run", run, *SMALL, "--restart").code == 0
    assert not list((run / "warmstart/checkpoint").iterdir())


def test_tensorflow_s_messages_are_kept_for_vv(run: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    command = [sys.executable, "-m", "bayesnde_cli", "warmstart", "--run", str(run), *SMALL, "--epochs", "3"]
    quiet = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert quiet.returncode == 0
    # On a slow machine there may be a line of progress, too.
    assert {line.split()[0] for line in quiet.stderr.splitlines()} <= {"columns,", "elbo,", "warmstart:"}
    before = _outputs(run, "warmstart")
    loud = subprocess.run([*command, "--restart", "-vv"], env=environ, capture_output=True, text=True)
    assert loud.returncode == 0
    assert "oneDNN" in loud.stderr
    assert _outputs(run, "warmstart") == before  # and a restart with the same settings makes the same again
