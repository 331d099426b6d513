"""`warmstart` and `refine` end to end: their outputs, which are the same after any interruption."""

import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import fake_training
import plain_graphs
from bayesnde_cli.model.stack import MODEL
from bayesnde_cli.runs.files import read_arrays
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import PosteriorSettings
from bayesnde_cli.stages import loading
from bayesnde_cli.stages.loading import read_networks
from bayesnde_cli.tables.model_rows import read_schema, rows_from_table

# Small networks and few epochs: the way there is tested, not the fit.
CHECKS = ["--checks=2", "--validation-draws=8", "--generated-rows=100"]
SMALL = ["--width=8", "--depth=1", "--column-steps=40", "--epochs=4", *CHECKS]


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


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with a warm start. Not to be written to."""
    from bayesnde_cli.cli.main import run

    own = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("trained") / "run"))
    assert run(["warmstart", "--run", str(own), *SMALL, "--device", "cpu", "-q"]) == 0
    return own


@pytest.fixture
def run(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the prepared run, to work on."""
    return Path(shutil.copytree(prepared, tmp_path / "run"))


@pytest.fixture
def warm(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run with a warm start, to work on."""
    return Path(shutil.copytree(trained, tmp_path / "warm"))


def _outputs(run: Path, stage: str) -> dict[str, bytes]:
    names = ("history.parquet", "selection.parquet", "weights/model.npz")
    return {name: (run / stage / name).read_bytes() for name in names}


def _table(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist()


def _strike(
    number: int, command: Sequence[object], line_start: str, program: Sequence[str] = ("-m", "bayesnde_cli")
) -> int:
    """Send a signal to a command in a process of its own after it has printed a line; the exit code."""
    arguments = [sys.executable, *program, *map(str, command)]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(line_start):
            process.send_signal(number)
            break
    process.communicate()
    return process.returncode


@pytest.mark.slow
def test_both_stages_leave_weights_history_selection_and_latents(bayesnde: Callable, warm: Path) -> None:
    refined = bayesnde("refine", "--run", warm, "--epochs=2", *CHECKS, "--json")
    assert refined.code == 0, refined.err
    history = _table(warm / "warmstart/history.parquet")
    assert [row["phase"] for row in history] == ["columns"] + ["elbo"] * 4
    assert [row["epoch"] for row in history] == [None, 1, 2, 3, 4]
    assert {"phase", "step", "loss", "negative_log_likelihood", "kl"} <= history[0].keys()
    assert np.isfinite([row["loss"] for row in history]).all()
    for stage, epochs in (("warmstart", [None, 2, 4]), ("refine", [0, 1, 2])):  # the warm start is a candidate, too
        selection = _table(warm / f"{stage}/selection.parquet")
        assert [row["epoch"] for row in selection] == epochs
        (chosen,) = [row for row in selection if row["is_chosen"]]
        assert chosen["marginal"] >= max(row["marginal"] for row in selection) - 1e-3
        recorded = json.loads((warm / stage / "manifest.json").read_text())["result"]["chosen"]
        assert recorded == {name: chosen[name] for name in ("phase", "epoch", "step", "marginal")} | {"by": "marginal"}
    assert json.loads(refined.out)["epoch"] == chosen["epoch"]
    weights, facts = read_arrays(warm / "refine/weights/model.npz")
    assert (facts["decoder"]["n_in"], facts["decoder"]["n_classes"]) == (2, 2)
    assert {name.split("/")[0] for name in weights} == {"decoder", "encoder", "members"}
    latents = pq.read_table(warm / "refine/latents.parquet")
    assert latents["row_id"].to_pylist() == pq.read_table(warm / "prepare/train.parquet")["row_id"].to_pylist()
    assert np.all(np.isfinite(latents["z_mean"].combine_chunks().flatten().to_numpy()))
    status = json.loads(bayesnde("status", "--run", warm, "--json").out)
    assert [stage["state"] for stage in status["stages"][:3]] == ["done"] * 3


def test_the_density_of_a_run_is_the_weighted_sum_of_its_members(
    bayesnde: Callable, warm: Path, tmp_path: Path
) -> None:
    alone = Path(shutil.copytree(warm, tmp_path / "alone"))
    refined = bayesnde("refine", "--run", warm, "--epochs=1", *CHECKS, "--json")
    assert refined.code == 0, refined.err
    outcome = bayesnde("refine", "--run", alone, "--epochs=1", *CHECKS, "--members", "latent", "--json")
    assert json.loads(outcome.out)["members"] == {MODEL: 1.0}
    stack, pure = (read_networks(RunLayout(run), "refine") for run in (warm, alone))
    assert all(np.array_equal(array, stack.weights[name]) for name, array in pure.weights.items())
    assert pure.stack.mixtures == {}
    weights = stack.stack.weights
    assert len(weights) > 1
    assert sum(weights.values()) == pytest.approx(1.0, abs=1e-12)
    assert json.loads(refined.out)["members"] == weights
    assert json.loads((warm / "refine/manifest.json").read_text())["result"]["members"] == weights
    again = bayesnde("refine", "--run", warm, "--epochs=1", *CHECKS)
    assert all(f"{name} {weight:.2f}" in again.out for name, weight in weights.items())
    assert "(up to date)" in again.out

    # Two rows, one with a missing cell: few rows need no compiled program.
    (tmp_path / "two.csv").write_text("a,b,k\n0.3,1,u\n2.1,,v\n")
    tables = []
    for run in (warm, alone):
        scored = bayesnde("density", tmp_path / "two.csv", "--run", run, "--draws=25", "--warm-up=25", "--json")
        assert scored.code == 0, scored.err
        tables.append(pq.read_table(json.loads(scored.out)["file"]).to_pydict())
    (stored,) = warm.glob("density/two*/rows.parquet")
    rows = rows_from_table(pq.read_table(stored), read_schema(RunLayout(warm)))
    of_stack, of_model = (np.array(table["log_density_scaled"]) for table in tables)
    parts = [math.log(weights[MODEL]) + of_model]
    parts += [math.log(weights[name]) + own.log_density(rows) for name, own in stack.stack.mixtures.items()]
    # The fitted model may have taken other draws: its error is the target at most.
    np.testing.assert_allclose(of_stack, np.logaddexp.reduce(parts), atol=0.15)
    assert np.abs(of_stack - of_model).max() > 1e-3
    assert tables[0]["mc_se"] <= tables[1]["mc_se"] or max(tables[0]["mc_se"]) <= 0.05

    # Draws are those of the fitted model, some of them replaced.
    y = np.eye(2, dtype=np.float32)[np.arange(64) % 2]
    own, model = (loading.open_prior(RunLayout(run), PosteriorSettings(), 64) for run in (warm, alone))
    np.testing.assert_array_equal(own.rows(5, y), stack.stack.mix_rows(model.rows(5, y), y, 5))
    assert (own.rows(5, y) != model.rows(5, y)).any()
    for ours, theirs in zip(own.moments(5, y), stack.stack.mix_moments(*model.moments(5, y), y, 5), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_a_signal_saves_and_the_next_run_resumes_to_the_same_bytes(bayesnde: Callable, run: Path, warm: Path) -> None:
    # The next phase is compiled after this line, so that the signal is never too late.
    assert _strike(signal.SIGTERM, ["warmstart", "--run", run, *SMALL], "columns, step") == 75
    assert (run / "warmstart/checkpoint/state.npz").exists()
    again = bayesnde("warmstart", "--run", run, *SMALL)
    assert again.code == 0, again.err
    assert "resuming after " in again.err
    assert _outputs(run, "warmstart") == _outputs(warm, "warmstart")
    assert sorted(path.name for path in run.glob("warmstart/*")) == sorted(
        path.name for path in warm.glob("warmstart/*")
    )


@pytest.mark.slow
@pytest.mark.usefixtures("without_xla")
def test_chains_latents_and_step_sizes_survive_a_kill(bayesnde: Callable, warm: Path, tmp_path: Path) -> None:
    calm = Path(shutil.copytree(warm, tmp_path / "calm"))
    options = ["--epochs=2", *CHECKS, "--latent-update", "posterior", "--burn-in", "2"]
    assert bayesnde("refine", "--run", calm, *options).code == 0
    # After the burn-in and the first check, while a round is traced.
    command, program = ["refine", "--run", warm, *options], [plain_graphs.__file__]
    assert _strike(signal.SIGKILL, command, "posterior, epoch 0", program) == -signal.SIGKILL
    assert not (warm / "refine/manifest.json").exists()
    again = bayesnde("refine", "--run", warm, *options)
    assert again.code == 0, again.err
    assert "resuming after epoch 0" in again.err
    assert _outputs(warm, "refine") == _outputs(calm, "refine")
    history = _table(warm / "refine/history.parquet")
    assert len(history) == 2
    assert {"acceptance", "lag", "negative_log_likelihood"} <= history[0].keys()
    assert 0.2 < history[-1]["acceptance"] <= 1.0


@pytest.mark.parametrize("method", ["write_weights", "forget"])
def test_a_signal_at_a_validation_check_loses_no_weights(
    bayesnde: Callable, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from bayesnde_cli.errors import Stopped
    from bayesnde_cli.training.loop import Checkpoints

    calm = Path(shutil.copytree(run, tmp_path / "calm"))
    done, n_calls = getattr(Checkpoints, method), 0

    def strike(*arguments: object) -> None:
        nonlocal n_calls
        done(*arguments)
        n_calls += 1
        if n_calls % 2 == 0:
            raise Stopped("SIGTERM")

    with fake_training.installed():
        assert bayesnde("warmstart", "--run", calm, *SMALL).code == 0
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, method, strike)
            for _ in range(2):
                assert bayesnde("warmstart", "--run", run, *SMALL).code == 75
        refused = bayesnde("warmstart", "--run", run, *SMALL, "--epochs", "5")
        assert refused.code == 2
        assert "settings.epochs: 4 -> 5" in refused.err
        outcome = bayesnde("warmstart", "--run", run, *SMALL)
        assert outcome.code == 0, outcome.err
        assert "resuming after epoch" in outcome.err
        assert _outputs(run, "warmstart") == _outputs(calm, "warmstart")
        # A restart replaces a stage of other settings, finished or interrupted.
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, method, strike)
            assert bayesnde("warmstart", "--run", run, *SMALL, "--epochs", "5", "--restart").code == 75
        assert bayesnde("warmstart", "--run", run, *SMALL, "--epochs", "6", "--restart").code == 0
    assert len(_table(run / "warmstart/history.parquet")) == 12
    assert not list((run / "warmstart/checkpoint").iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("without_xla")
def test_the_paper_s_two_stages_run_with_every_term_in_the_history(bayesnde: Callable, run: Path) -> None:
    weights = ["adversarial-x", "adversarial-z", "reconstruction-x", "reconstruction-z", "correlation"]
    weights += ["marginal-mmd", "joint-mmd", "sliced-wasserstein", "log-variance", "squared-variance"]
    options = [word for name in weights for word in (f"--{name}-weight", "0.5")]
    egm = ["--objective", "both", "--egm-steps", "4", "--select", "rank", "--epochs", "2"]
    warm = bayesnde("warmstart", "--run", run, *SMALL, *egm, *options, "--json")
    assert warm.code == 0, warm.err
    assert json.loads(warm.out)["selected_by"] == "rank"
    history = _table(run / "warmstart/history.parquet")
    assert [row["phase"] for row in history] == ["egm", "elbo", "elbo"]
    assert history[0]["step"] == 4
    for name in (*weights, "discriminator-x", "discriminator-z", "loss"):
        values = [row[name.replace("-", "_")] for row in history]
        assert np.isfinite(values[0]), name
        assert name == "loss" or values[1:] == [None] * 2
    selection = _table(run / "warmstart/selection.parquet")
    assert [row["rank"] for row in selection if row["is_chosen"]] == [min(row["rank"] for row in selection)]
    assert not list((run / "warmstart/checkpoint").glob("check-*"))
    terms = ["--mmd-weight", "10", "--correlation-weight", "0.3", "--log-variance-weight", "0.01"]
    update = ["--latent-update", "map", "--select", "plug-in", "--epochs", "2"]
    refined = bayesnde("refine", "--run", run, *CHECKS, *update, *terms)
    assert refined.code == 0, refined.err
    assert refined.out.startswith(f"{run}/refine: epoch ")
    history = _table(run / "refine/history.parquet")
    assert {"mmd", "correlation", "log_variance", "latent_norm"} <= history[0].keys()
    selection = _table(run / "refine/selection.parquet")
    best = max(row["plug_in"] for row in selection)
    assert next(row["plug_in"] for row in selection if row["is_chosen"]) == pytest.approx(best, abs=1e-3)
    figures = ("marginal", "rbf_mmd", "symmetric_kl", "sliced_wasserstein", "marginal_wasserstein", "ks", "rank")
    assert all(np.isfinite(row[name]) for row in selection for name in figures)


def test_a_stage_before_is_asked_for(bayesnde: Callable, run: Path, tmp_path: Path) -> None:
    outcome = bayesnde("warmstart", "--run", tmp_path / "none")
    assert outcome.code == 3
    assert outcome.err == (
        f"error: prepare is missing or incomplete\n  no {tmp_path}/none/prepare/manifest.json\n"
        f"hint: run `bayesnde prepare DATA --run {tmp_path}/none`\n"
    )
    outcome = bayesnde("refine", "--run", run)
    assert outcome.code == 3
    assert outcome.err.endswith(f"hint: run `bayesnde warmstart --run {run}`\n")


def test_other_settings_are_listed_and_a_loss_that_is_not_finite_is_four(bayesnde: Callable, warm: Path) -> None:
    manifest = json.loads((warm / "warmstart/manifest.json").read_text())
    assert manifest["device"].startswith("cpu, ")
    assert manifest["config"]["device"] == "cpu"
    again = bayesnde("warmstart", "--run", warm, *SMALL, "--threads", "1")  # device and threads are no other settings
    assert (again.code, again.err) == (0, "")
    assert again.out.endswith("(up to date)\n")
    other = bayesnde("warmstart", "--run", warm, *SMALL, "--learning-rate", "1e30")
    assert other.code == 2
    assert "settings.learning_rate: (none) -> 1e+30" in other.err
    before = _outputs(warm, "warmstart")
    failed = bayesnde("warmstart", "--run", warm, *SMALL, "--learning-rate", "1e30", "--restart")
    assert failed.code == 4
    assert "error: a loss is not finite in columns, step " in failed.err
    assert _outputs(warm, "warmstart") == before


@pytest.mark.parametrize(("options", "is_verbose"), [((), False), (("-vv",), True)])
def test_vv_shows_tensorflow_s_messages(
    bayesnde: Callable, run: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], is_verbose: bool
) -> None:
    from bayesnde_cli.errors import BadUsage
    from bayesnde_cli.model import backend

    found = []

    def refuse(*, verbose: bool, **_: object) -> None:
        found.append(verbose)
        raise BadUsage("not today", found="nothing", hint="none")

    monkeypatch.setattr(backend, "load_tensorflow", refuse)
    assert bayesnde("warmstart", "--run", run, *SMALL, *options).code == 2
    assert found == [is_verbose]
