"""The arms of an experiment, ours with stand-ins for training and engine: run once, gone on with, run again."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import fake_model
from bayesnde_cli.artifacts.arrays import write_arrays
from bayesnde_cli.artifacts.canonical import json_bytes
from bayesnde_cli.artifacts.experiments_layout import ArmLayout
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.processes import place
from bayesnde_cli.config import PosteriorConfig
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.evaluation.baselines import Method, Part
from bayesnde_cli.evaluation.baselines.fitted import FittedParts
from bayesnde_cli.evaluation.baselines.kept import Keeper, KeptState
from bayesnde_cli.stages import evaluate
from bayesnde_cli.stages.reproduce import competitor_arm, own_arm, rows
from bayesnde_cli.stages.reproduce.experiments import EXPERIMENTS
from bayesnde_cli.stages.scoring.engine import Opened
from fake_engine import FakeEngine

N_ROWS, N_TEST = 400, 40
# Settings that the stand-ins are fast with.
SMALL = [
    "--set", "prepare.scale=standard", "--set", "warmstart.epochs=2", "--set", "refine.epochs=2",
    "--set", "density.chains=2", "--set", "density.draws=4",
    "--set", "evaluate.generated_rows=50", "--set", "evaluate.typicality_rows=50",
]  # fmt: skip
SCORING = SMALL[6:]


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rows, "SIMULATED_ROWS", N_ROWS)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """Stand-ins for the rounds of training, the engine and the fitted model; the engines that are opened."""
    import fake_training
    from bayesnde_cli.stages.training import fitting

    for name in ("phases_of", "Judge"):
        monkeypatch.setattr(fitting, name, getattr(fitting, name))  # put back afterwards
    fake_training.install()
    engines: list[FakeEngine] = []

    def factory(layout: RunLayout, config: PosteriorConfig, *, is_verbose: bool = False) -> Opened:
        engines.append(FakeEngine(config))
        return Opened(engines[-1], "fake")

    monkeypatch.setattr(own_arm, "open_engine", factory)
    models = partial(evaluate.run_evaluate, models=lambda *_: fake_model.NormalModel(n_columns=2))
    monkeypatch.setattr(own_arm, "run_evaluate", models)
    monkeypatch.setattr(evaluate, "report_bytes", lambda *_: b"")  # its pictures take most of the time
    return engines


def _result(folder: str) -> dict:
    return json.loads(Path(f"run/reproduce/{folder}/result.json").read_text())


def _files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder, with the time of its last change."""
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_a_competitor_from_end_to_end(bayesnde: Callable) -> None:
    outcome = bayesnde("reproduce", "involute", "--method", "gaussian_mixture", "--seeds", "3", "--json")
    assert outcome.code == 0, outcome.err
    found = _result("involute/gaussian_mixture-seed3")
    assert json.loads(outcome.out) == {"experiment": "involute", "results": [found]}
    told = {key: found[key] for key in ("experiment", "method", "is_own", "seed", "settings", "test_rows", "device")}
    assert told == {
        "experiment": "involute", "method": "gaussian_mixture", "is_own": False, "seed": 3, "settings": [],
        "test_rows": 500, "device": "cpu, 1 thread",
    }  # fmt: skip
    # The figures are those of the scores that lie beside them.
    scores = pq.read_table("run/reproduce/involute/gaussian_mixture-seed3/scores.parquet")
    data = pq.read_table("run/reproduce/involute/data.parquet")
    truth = data[data.column_names[2]].to_numpy()[scores["row_id"].to_numpy()]
    log_density = scores["log_density"].to_numpy()
    figures = found["figures"]
    assert (figures["n"], figures["n_not_finite"]) == (N_TEST, 0)
    assert figures["mean_log_density"] == pytest.approx(log_density.mean())
    assert figures["mean_log_density_se"] == pytest.approx(log_density.std(ddof=1) / np.sqrt(N_TEST))
    assert figures["spearman"] == pytest.approx(stats.spearmanr(log_density, truth).statistic)
    assert figures["spearman"] > 0.2  # a mixture knows something of the spiral


def test_a_competitor_that_was_stopped_goes_on_from_what_it_kept(
    bayesnde: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fit here counts to three; the first process comes as far as two, the second to the end."""
    begun_at: list[int] = []
    last = 2

    def methods(keeper: Keeper) -> dict[str, Method]:
        def fit(train: Part, validation: Part, seed: int) -> FittedParts:
            state = KeptState(keeper, "count", train, validation)
            there = state.read()
            count = 0 if there is None else int(there["count"])
            begun_at.append(count)
            while count < last:
                count += 1
                state.write(partial(dict, count=np.array(count)), is_last=True)
            if count < 3:
                raise BadUsage("stopped", found="a signal", hint="go on")
            return FittedParts(lambda part: -0.5 * (part.cells**2).sum(axis=1), {})

        return {"gaussian": Method(fit, fit)}

    monkeypatch.setattr(competitor_arm, "methods", methods)
    arm = Path("run/reproduce/involute/gaussian-seed0")
    command = ["reproduce", "involute", "--method", "gaussian"]
    assert bayesnde(*command).code != 0
    (state,) = arm.iterdir()
    last = 3
    assert bayesnde(*command).code == 0
    assert begun_at[:2] == [0, 2]
    assert sorted(path.name for path in arm.iterdir()) == ["map.parquet", "result.json", "scores.parquet"]
    # A damaged state, and one of other rows under the same name, are lost time and no more.
    for damaged in (b"", _other_state(arm / "other.npz")):
        begun_at.clear()
        arm.joinpath("result.json").unlink()
        state.write_bytes(damaged)
        assert bayesnde(*command).code == 0
        assert begun_at[0] == 0
        assert not state.exists()
    # What is left behind if the process is killed right after its result goes the next time; and with --restart.
    state.write_bytes(b"")
    assert bayesnde(*command).code == 0
    assert not state.exists()


def _other_state(path: Path) -> bytes:
    """A file of arrays that is whole, and not what it is taken for."""
    write_arrays(path, {"count": np.array(2)}, {"fit": "another"})
    data = path.read_bytes()
    path.unlink()
    return data


def test_an_arm_that_is_done_is_not_run_again_and_a_restart_runs_it(bayesnde: Callable) -> None:
    command = ["reproduce", "involute", "--method", "gaussian", "-q"]
    first = bayesnde(*command)
    header, line = first.out.splitlines()
    assert header.split() == ["involute", "seed", "spearman", "in", "the", "paper", "time"]
    assert line.split()[:2] == ["gaussian", "0"]
    before = _files(Path("run"))
    assert bayesnde(*command) == first
    assert _files(Path("run")) == before
    assert bayesnde(*command, "--restart").code == 0
    changed = {path for path, content in _files(Path("run")).items() if content != before[path]}
    names = ("result.json", "scores.parquet", "map.parquet")
    assert changed == {f"run/reproduce/involute/gaussian-seed0/{name}" for name in names}


def test_an_arm_that_was_run_with_other_settings_is_no_answer(bayesnde: Callable) -> None:
    command = ["reproduce", "involute", "--method", "gaussian", "-q"]
    assert bayesnde(*command).code == 0
    assert bayesnde(*command, "--test-rows", "30") == (
        2,
        "",
        "error: run/reproduce/involute/gaussian-seed0 was run with other settings\n  test rows: 500 -> 30\n"
        "hint: add --restart to run it again, or keep it and use another directory with --run OTHER\n",
    )
    assert bayesnde(*command, "--test-rows", "30", "--restart").code == 0
    found = _result("involute/gaussian-seed0")
    assert (found["test_rows"], found["figures"]["n"]) == (30, 30)
    # Settings are of our recipes: a competitor has none.
    assert bayesnde(*command, "--test-rows", "30", "--set", "density.draws=3") == (
        2,
        "",
        "error: --set changes recipes of ours, and none was asked for\n  --set density.draws=3\n"
        "hint: leave it out, or name a recipe with --recipe\n",
    )


def test_rows_of_other_settings_that_arms_share_are_refused_with_a_way_out(bayesnde: Callable) -> None:
    command = ["reproduce", "involute", "--method", "gaussian", "-q"]
    rows_of = Path("run/reproduce/involute/rows-marginal-500")
    assert bayesnde("simulate", "involute", "--rows", "300", "--out", "other.csv").code == 0
    assert bayesnde("prepare", "other.csv", "--run", str(rows_of)).code == 0
    refused = bayesnde(*command, "--restart")
    assert refused.code == 2
    assert refused.err.splitlines()[-1] == f"hint: remove the folder {rows_of} and run the same command again"
    shutil.rmtree(rows_of)
    assert bayesnde(*command, "--restart").code == 0


def test_what_an_ablation_takes_away_cannot_be_put_back_and_is_told_before_the_first_arm(bayesnde: Callable) -> None:
    assert bayesnde("reproduce", "ablation-2d", "--set", "warmstart.egm_steps=6000", "-q") == (
        2,
        "",
        "error: paper-no-warm-start is the recipe with warmstart.egm_steps=1, warmstart.checks=1, which cannot be "
        "changed\n  --set warmstart.egm_steps=6000\nhint: leave it out, or name the other recipes with --recipe\n",
    )
    assert not Path("run").exists()


def test_a_row_without_a_density_is_counted_and_left_out_of_the_means(tmp_path: Path) -> None:
    from bayesnde_cli.artifacts.tables import write_table
    from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION

    def run(name: str, log_density: list[float], mc_se: list[float]) -> RunLayout:
        layout = RunLayout(tmp_path / name)
        table = pa.table({"log_density": log_density, "log_density_is": log_density, "mc_se": mc_se})
        path = layout.density_file("test")
        path.parent.mkdir(parents=True)
        write_table(path, table, schema_name=DENSITY_SCHEMA, schema_version=DENSITY_VERSION, run_id="0" * 16)
        return layout

    nan = float("nan")
    found = run("found", [1.0, nan, 3.0], [0.1, nan, 0.3])
    base = run("base", [1.5, 2.0, 3.0], [0.1, 0.1, 0.1])
    figures = own_arm.own_figures(found, {"rows": {"n_reliable": 2}}, None, None, base)
    assert (figures["n"], figures["n_not_finite"], figures["mean_log_density"]) == (3, 1, 2.0)
    assert figures["mean_mc_se"] == pytest.approx(0.2)
    assert figures["error"] == figures["importance"]["error"] == pytest.approx(np.sqrt(0.125))
    nothing = run("nothing", [nan, nan, nan], [nan, nan, nan])
    figures = own_arm.own_figures(nothing, {"rows": {"n_reliable": 0}}, None, None, base)
    assert figures["mean_mc_se"] is figures["error"] is figures["mean_log_density"] is None
    json_bytes(figures)  # which no NaN could be


def test_our_arm_from_end_to_end_is_on_the_competitors_rows(bayesnde: Callable, opened: list) -> None:
    command = ["reproduce", "involute", "--seeds", "4", *SMALL, "-q"]
    outcome = bayesnde(*command)
    assert outcome.code == 0, outcome.err
    found, arm = _result("involute/default-seed4"), Path("run/reproduce/involute/default-seed4")
    assert (found["is_own"], found["seed"], found["settings"]) == (True, 4, SMALL[1::2])
    config = json.loads((arm / "density/test/manifest.json").read_text())["config"]
    assert (config["chains"], config["draws"], config["seed"]) == (2, 4, 4)
    assert json.loads((arm / "prepare/manifest.json").read_text())["config"]["scale"] == "standard"
    table = pq.read_table(arm / "density/test/density.parquet")
    data = pq.read_table("run/reproduce/involute/data.parquet")
    truth = data[data.column_names[2]].to_numpy()[table["row_id"].to_numpy()]
    for column, figures in (("log_density", found["figures"]), ("log_density_is", found["figures"]["importance"])):
        assert figures["mean_log_density"] == pytest.approx(table[column].to_numpy().mean())
        assert figures["spearman"] == pytest.approx(stats.spearmanr(table[column].to_numpy(), truth).statistic)
    assert found["figures"]["mean_mc_se"] == pytest.approx(table["mc_se"].to_numpy().mean())
    assert found["figures"]["n_reliable"] == sum(table["reliable"].to_pylist())
    assert set(found["chosen"]) == {"latent_dim", "scale", "warmstart", "refine"}
    assert bayesnde("reproduce", "involute", "--method", "gaussian", "-q").code == 0
    assert found["rows_sha256"] == _result("involute/gaussian-seed0")["rows_sha256"]

    before = _files(arm)
    assert bayesnde(*command) == outcome
    assert _files(arm) == before
    shorter = ["reproduce", "involute", "--seeds", "4", *SMALL[:2], "-q"]
    assert bayesnde(*shorter) == (
        2,
        "",
        f"error: {arm} was run with other settings\n  settings: {SMALL[1::2]} -> ['prepare.scale=standard']\n"
        "hint: add --restart to run it again, or keep it and use another directory with --run OTHER\n",
    )
    assert _files(arm) == before


def test_a_restart_of_our_arm_replaces_every_stage(bayesnde: Callable, opened: list) -> None:
    command = ["reproduce", "involute", *SMALL, "-q"]
    assert bayesnde(*command).code == 0
    arm = ArmLayout(Path("run/reproduce/involute/default-seed0"))
    first, before = _result("involute/default-seed0"), _files(arm.root)
    assert bayesnde(*command, "--set", "warmstart.epochs=3", "--restart").code == 0
    second = _result("involute/default-seed0")
    assert second["settings"] == [*first["settings"], "warmstart.epochs=3"]
    trained = json.loads((arm.root / "warmstart/manifest.json").read_text())["config"]
    assert trained["epochs"] == 3
    assert second["rows_sha256"] == first["rows_sha256"]
    after = _files(arm.root)
    manifests = [path for path in before if path.endswith("manifest.json")]
    assert len(manifests) >= 5
    assert [path for path in manifests if after[path][0] == before[path][0]] == []


@pytest.fixture
def sweep(bayesnde: Callable, opened: list, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The arm whose model the budgets share, as if it had been run with its own settings."""
    small = replace(EXPERIMENTS["budget-sweep"], dim=2, preset="paper-gmm-low", folder="gmm-2")
    monkeypatch.setitem(EXPERIMENTS, "budget-sweep", small)  # type: ignore[arg-type]
    assert bayesnde("reproduce", "gmm", "--dim", "2", *SMALL, "-q").code == 0
    base = Path("run/reproduce/gmm-2/default-seed0")
    found = _result("gmm-2/default-seed0") | {"settings": []}
    (base / "result.json").write_text(json.dumps(found))
    return base


def test_budgets_score_with_a_copy_of_the_model_and_leave_it_alone(
    bayesnde: Callable, opened: list, sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _files(sweep)
    command = ["reproduce", "budget-sweep", "--recipe", "budget-100", "--seeds", "2", *SCORING, "-q"]
    arm = sweep.with_name("budget-100-seed2")

    litter = arm / f".tmp-{place()}-{2**22 - 1}-0123abcd-refine"  # of a process that is gone
    litter.mkdir(parents=True)

    class Killed(BaseException):
        """The process ends here."""

    copytree = shutil.copytree

    def dies(source: Path, target: Path, *rest: object) -> None:
        copytree(source, target, *rest)
        if source == sweep / "warmstart":
            next(path for path in Path(target).rglob("*") if path.is_file()).unlink()
            raise Killed

    monkeypatch.setattr(own_arm.shutil, "copytree", dies)
    with pytest.raises(Killed):
        bayesnde(*command)
    monkeypatch.setattr(own_arm.shutil, "copytree", copytree)
    assert (arm / "prepare/manifest.json").exists()
    assert not (arm / "warmstart").exists()
    assert not (arm / "result.json").exists()

    outcome = bayesnde(*command)
    assert outcome.code == 0, outcome.err
    assert _files(sweep) == before
    assert not litter.exists()
    for stage in ("prepare", "warmstart", "refine"):
        copied = {str(path.relative_to(arm)): path.read_bytes() for path in (arm / stage).rglob("*") if path.is_file()}
        kept = {
            str(path.relative_to(sweep)): path.read_bytes() for path in (sweep / stage).rglob("*") if path.is_file()
        }
        assert copied == kept
    found = _result("gmm-2/budget-100-seed2")
    assert found["experiment"] == "gmm-2"
    assert json.loads((arm / "density/test/manifest.json").read_text())["config"]["seed"] == 2
    assert opened[-1].config.draws == 4  # the user's, over the recipe's 25
    assert found["rows_sha256"] == _result("gmm-2/default-seed0")["rows_sha256"]


def test_a_budget_cannot_change_the_model(bayesnde: Callable, tmp_path: Path) -> None:
    arguments = ["--recipe", "budget-100", "--set", "density.chains=2", "--set", "warmstart.epochs=3", "-q"]
    assert bayesnde("reproduce", "budget-sweep", *arguments) == (
        2,
        "",
        "error: budget-100 scores with a model that is there\n  --set warmstart.epochs=3 would change nothing\n"
        "hint: set only what density and evaluate have\n",
    )


def test_shards_run_every_arm_once(bayesnde: Callable) -> None:
    command = [
        "reproduce",
        "involute",
        "--method",
        "gaussian",
        "--method",
        "kernel_density",
        "--seeds",
        "0,1",
        "--json",
    ]
    ran = []
    for index in (1, 2, 3):
        outcome = bayesnde(*command, "--shard", f"{index}/3")
        assert outcome.code == 0, outcome.err
        ran.append([(result["method"], result["seed"]) for result in json.loads(outcome.out)["results"]])
    assert ran == [[("gaussian", 0), ("kernel_density", 1)], [("gaussian", 1)], [("kernel_density", 0)]]
    assert bayesnde(*command, "--shard", "5/5", "-q").code == 0
