"""The arms of an experiment, ours with fake training, engine and model: run, resumed, run again; and their rows."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from sklearn.datasets import load_digits

import fake_model
from bayesnde_cli.cli.console import Console
from bayesnde_cli.competitors import Method, Tables, make_spaces
from bayesnde_cli.competitors.plain import Fitted, Keeper, KeptState
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.inference.class_screen import FirstFigures
from bayesnde_cli.reproduce import arms
from bayesnde_cli.reproduce.arms import Arm, competitor_tables, read_tables, rows_sha256, unit_interval_shift
from bayesnde_cli.reproduce.experiments import DEFAULT, EXPERIMENTS, PAPER, Experiment, Request, prepare_settings
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.files import HOST, holding, json_bytes
from bayesnde_cli.runs.layout import ExperimentsLayout, RunLayout
from bayesnde_cli.runs.parquet_files import Stamp, write_table
from bayesnde_cli.settings.stage_settings import PosteriorSettings, PrepareSettings
from bayesnde_cli.stages import evaluate, loading
from bayesnde_cli.stages.loading import Opened
from bayesnde_cli.stages.score import DENSITY_SCHEMA
from fake_engine import FakeEngine

QUIET = Console(quiet=True)
N_ROWS, N_TEST = 400, 40
TRAINING = ["prepare.scale=standard", "warmstart.epochs=2", "refine.epochs=2"]
SCORING = [
    *("density.method=bridge", "density.chains=2", "density.draws=4"),
    *("evaluate.generated_rows=50", "evaluate.typicality_rows=50"),
]
SMALL = [word for text in (*TRAINING, *SCORING) for word in ("--set", text)]
GAUSSIAN = ["reproduce", "involute", "--method", "gaussian", "-q"]


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(arms, "SIMULATED_ROWS", N_ROWS)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def engines() -> Iterator[list[FakeEngine]]:
    """The engines that are opened: fake ones, as are the rounds of training and the fitted model."""
    import fake_training

    opened: list[FakeEngine] = []

    def factory(layout: RunLayout, config: PosteriorSettings, *, is_verbose: bool = False) -> Opened:
        opened.append(FakeEngine(config))
        return Opened(opened[-1], "fake")

    with fake_training.installed(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "open_engine", factory)
        fake_model.install(patched, fake_model.NormalModel(n_columns=2))
        patched.setattr(evaluate, "report_page", lambda *_: b"")  # its pictures take most of the time
        yield opened


@pytest.fixture(scope="module")
def fitted(engines: list[FakeEngine], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of an arm of ours. Not to be written to."""
    from bayesnde_cli.cli.main import run

    root = tmp_path_factory.mktemp("fitted") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arms, "SIMULATED_ROWS", N_ROWS)
        assert run(["reproduce", "involute", *SMALL, "--run", str(root), "-q"]) == 0
    return root


@pytest.fixture
def own(fitted: Path, tmp_path: Path) -> Path:
    """The folder of the arm, in a copy of the run directory."""
    return Path(shutil.copytree(fitted, tmp_path / "run")) / "reproduce/involute/default-seed0"


def _result(arm: Path) -> dict:
    return json.loads((arm / "result.json").read_text())


def _files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder, with the time of its last change."""
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


# Competitors


def test_a_competitor_from_end_to_end_is_run_once_unless_it_is_restarted(bayesnde: Callable) -> None:
    arm = Path("run/reproduce/involute/gaussian_mixture-seed3")
    command = ["reproduce", "involute", "--method", "gaussian_mixture", "--seeds", "3", "--json"]
    outcome = bayesnde(*command)
    assert outcome.code == 0, outcome.err
    found = _result(arm)
    assert json.loads(outcome.out) == {"experiment": "involute", "results": [found]}
    names = ("experiment", "method", "is_own", "seed", "settings", "test_rows", "device")
    expected = ["involute", "gaussian_mixture", False, 3, [], 500, "cpu, 1 thread"]
    assert [found[name] for name in names] == expected
    # The figures are those of the scores next to them.
    scores = pq.read_table(arm / "scores.parquet")
    data = pq.read_table("run/reproduce/involute/data.parquet")
    truth = data[data.column_names[2]].to_numpy()[scores["row_id"].to_numpy()]
    log_density, figures = scores["log_density"].to_numpy(), found["figures"]
    assert (figures["n"], figures["n_not_finite"]) == (N_TEST, 0)
    assert figures["mean_log_density"] == pytest.approx(log_density.mean())
    assert figures["mean_log_density_se"] == pytest.approx(log_density.std(ddof=1) / np.sqrt(N_TEST))
    assert figures["spearman"] == pytest.approx(stats.spearmanr(log_density, truth).statistic)
    assert figures["spearman"] > 0.2  # a mixture finds some of the spiral
    before = _files(Path("run"))
    assert json.loads(bayesnde(*command).out) == json.loads(outcome.out)
    assert _files(Path("run")) == before
    assert bayesnde(*command, "--test-rows", "30", "-q") == (
        2,
        "",
        f"error: {arm} was run with other settings\n  test rows: 500 -> 30\n"
        "hint: add --restart to run it again, or keep it and use another directory with --run OTHER\n",
    )
    assert bayesnde(*command, "--restart").code == 0
    changed = {path for path, content in _files(Path("run")).items() if content != before[path]}
    assert changed == {str(arm / name) for name in ("result.json", "scores.parquet", "map.parquet")}


def test_a_competitor_that_was_stopped_resumes(bayesnde: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit here counts to three; the first process comes as far as two, the second to the end."""
    begun_at: list[int] = []
    last = 2

    def methods(keeper: Keeper) -> dict[str, Method]:
        def fit(train: Rows, validation: Rows, seed: int) -> Fitted:
            state = KeptState(keeper, "count", train, validation)
            there = state.read()
            count = 0 if there is None else int(there["count"])
            begun_at.append(count)
            while count < last:
                count += 1
                state.write(partial(dict, count=np.array(count)), is_last=True)
            if count < 3:
                raise BadUsage("stopped", found="a signal", hint="resume")
            return Fitted(lambda rows: -0.5 * (rows.x**2).sum(axis=1), {})

        return {"gaussian": Method(fit, fit)}

    monkeypatch.setattr(arms, "make_methods", methods)
    arm = Path("run/reproduce/involute/gaussian-seed0")
    assert bayesnde(*GAUSSIAN).code != 0
    (state,) = arm.iterdir()
    last = 3
    assert bayesnde(*GAUSSIAN).code == 0
    assert begun_at[:2] == [0, 2]
    assert sorted(path.name for path in arm.iterdir()) == ["map.parquet", "result.json", "scores.parquet"]
    # A state that a process left behind right after its result is removed the next time.
    state.write_bytes(b"")
    assert bayesnde(*GAUSSIAN).code == 0
    assert not state.exists()


def test_shared_rows_of_other_settings_are_refused_with_a_way_out(bayesnde: Callable) -> None:
    rows_of = Path("run/reproduce/involute/rows-marginal-500")
    assert bayesnde("simulate", "involute", "--rows", "300", "--out", "other.csv").code == 0
    assert bayesnde("prepare", "other.csv", "--run", str(rows_of)).code == 0
    refused = bayesnde(*GAUSSIAN)
    assert refused.code == 2
    assert refused.err.splitlines()[-1] == f"hint: remove the folder {rows_of} and run the same command again"


def test_shards_run_every_arm_once(bayesnde: Callable) -> None:
    command = [*GAUSSIAN, "--method", "kernel_density", "--seeds", "0,1", "--json"]
    ran = []
    for index in (1, 2, 3):
        outcome = bayesnde(*command, "--shard", f"{index}/3")
        assert outcome.code == 0, outcome.err
        ran.append([(result["method"], result["seed"]) for result in json.loads(outcome.out)["results"]])
    assert ran == [[("gaussian", 0), ("kernel_density", 1)], [("gaussian", 1)], [("kernel_density", 0)]]


# Our model


def test_a_row_without_a_density_is_counted_and_left_out_of_the_means(tmp_path: Path) -> None:
    def run(name: str, log_density: list[float], mc_se: list[float]) -> RunLayout:
        layout = RunLayout(tmp_path / name)
        table = pa.table({"log_density": log_density, "log_density_is": log_density, "mc_se": mc_se})
        path = layout.density_file("test")
        path.parent.mkdir(parents=True)
        write_table(path, table, Stamp(DENSITY_SCHEMA, "0" * 16))
        return layout

    nan = float("nan")
    found = run("found", [1.0, nan, 3.0], [0.1, nan, 0.3])
    base = run("base", [1.5, 2.0, 3.0], [0.1, 0.1, 0.1])
    figures = arms.own_figures(found, None, None, base)
    assert (figures["n"], figures["n_not_finite"], figures["mean_log_density"]) == (3, 1, 2.0)
    assert figures["mean_mc_se"] == pytest.approx(0.2)
    assert figures["error"] == figures["importance"]["error"] == pytest.approx(np.sqrt(0.125))
    nothing = run("nothing", [nan, nan, nan], [nan, nan, nan])
    figures = arms.own_figures(nothing, None, None, base)
    assert figures["mean_mc_se"] is figures["error"] is figures["mean_log_density"] is None
    json_bytes(figures)  # which rejects NaN


def test_our_arm_is_on_the_competitors_rows_and_a_restart_replaces_every_stage(bayesnde: Callable, own: Path) -> None:
    found, before, settings = _result(own), _files(own), [*TRAINING, *SCORING]
    assert (found["is_own"], found["seed"], found["settings"]) == (True, 0, settings)
    config = json.loads((own / "density/test/manifest.json").read_text())["config"]
    assert (config["chains"], config["draws"], config["seed"]) == (2, 4, 0)
    table = pq.read_table(own / "density/test/density.parquet")
    data = pq.read_table(own.with_name("data.parquet"))
    truth = data[data.column_names[2]].to_numpy()[table["row_id"].to_numpy()]
    for column, figures in (("log_density", found["figures"]), ("log_density_is", found["figures"]["importance"])):
        assert figures["mean_log_density"] == pytest.approx(table[column].to_numpy().mean())
        assert figures["spearman"] == pytest.approx(stats.spearmanr(table[column].to_numpy(), truth).statistic)
    assert found["figures"]["mean_mc_se"] == pytest.approx(table["mc_se"].to_numpy().mean())
    assert found["figures"]["n_reliable"] == sum(table["reliable"].to_pylist())
    assert set(found["chosen"]) == {"latent_dim", "scale", "warmstart", "refine"}
    assert bayesnde(*GAUSSIAN).code == 0
    assert found["rows_sha256"] == _result(own.with_name("gaussian-seed0"))["rows_sha256"]

    command = ["reproduce", "involute", *SMALL, "-q"]
    assert bayesnde(*command).code == 0
    changed = ["--set", "warmstart.epochs=3"]
    refused = bayesnde(*command, *changed)
    arm = own.relative_to(Path.cwd())
    assert refused.err.splitlines()[:2] == [
        f"error: {arm} was run with other settings",
        f"  settings: {settings} -> {[*settings, changed[1]]}",
    ]
    assert _files(own) == before
    assert bayesnde(*command, *changed, "--restart").code == 0
    assert json.loads((own / "warmstart/manifest.json").read_text())["config"]["epochs"] == 3
    assert _result(own)["rows_sha256"] == found["rows_sha256"]
    after, manifests = _files(own), [path for path in before if path.endswith("manifest.json")]
    assert len(manifests) >= 5
    assert [path for path in manifests if after[path][0] == before[path][0]] == []


def test_budgets_score_with_a_copy_of_the_model_and_leave_it_alone(
    bayesnde: Callable, engines: list, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small: dict[str, Any] = {"simulator": "involute", "dim": None, "preset": "paper-involute", "folder": "involute"}
    monkeypatch.setitem(EXPERIMENTS, "budget-sweep", replace(EXPERIMENTS["budget-sweep"], **small))
    (own / "result.json").write_text(json.dumps(_result(own) | {"settings": []}))
    before, arm = _files(own), own.with_name("budget-100-seed2")
    scoring = [word for text in SCORING for word in ("--set", text)]
    command = ["reproduce", "budget-sweep", "--recipe", "budget-100", "--seeds", "2", *scoring, "-q"]
    litter = arm / f".tmp-{HOST}-{2**22 - 1}-0123abcd-refine"  # of a process that is gone
    litter.mkdir(parents=True)

    class Killed(BaseException):
        """The process ends here."""

    copytree = shutil.copytree

    def dies(source: Path, target: Path, *rest: Any) -> None:
        copytree(source, target, *rest)
        if Path(source).name == "warmstart":
            next(path for path in Path(target).rglob("*") if path.is_file()).unlink()
            raise Killed

    monkeypatch.setattr(arms.shutil, "copytree", dies)
    with pytest.raises(Killed):
        bayesnde(*command)
    monkeypatch.setattr(arms.shutil, "copytree", copytree)
    assert (arm / "prepare/manifest.json").exists()
    assert not (arm / "warmstart").exists()
    assert not (arm / "result.json").exists()

    outcome = bayesnde(*command)
    assert outcome.code == 0, outcome.err
    assert _files(own) == before
    assert not litter.exists()
    for stage in ("prepare", "warmstart", "refine"):
        copied, kept = (
            {str(path.relative_to(folder)): path.read_bytes() for path in (folder / stage).rglob("*") if path.is_file()}
            for folder in (arm, own)
        )
        assert copied == kept
    found = _result(arm)
    assert found["experiment"] == "involute"
    assert json.loads((arm / "density/test/manifest.json").read_text())["config"]["seed"] == 2
    assert engines[-1].config.draws == 4  # the user's, over the recipe's 25
    assert found["rows_sha256"] == _result(own)["rows_sha256"]


# Images

N_IMAGES = 70
IMAGES = ["reproduce", "mnist", "--train-rows", "300", "--test-rows", str(N_IMAGES), *SMALL[2:10]]


class _Screen:
    """The first class is likeliest for every image; may fail in its n-th block."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.n_blocks, self._fails_at = 0, fails_at

    def __call__(self, x: np.ndarray, seed: int, prior: np.ndarray, known: np.ndarray | None) -> FirstFigures:
        self.n_blocks += 1
        assert known is not None
        assert known.shape == (len(x),)  # the density given the true class is wanted
        if self.n_blocks == self._fails_at:
            raise KeyboardInterrupt
        log_density, se = np.tile(-100.0 * np.arange(10.0), (len(x), 1)), np.full((len(x), 10), 0.1)
        return FirstFigures(log_density, se, np.full(len(x), 990))


def test_images_are_classified_block_by_block_and_a_stopped_arm_resumes(
    bayesnde: Callable, engines: list, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    digits, arm, n_blocks = load_digits(), tmp_path / "run/reproduce/mnist/default-seed0", -(-N_IMAGES // 32)
    np.savez(tmp_path / "digits.npz", images=digits.images.astype(np.uint8), label=digits.target)
    monkeypatch.setattr(arms.experiments, "find_files", lambda *_: [tmp_path / "digits.npz"])

    def install(screen: _Screen) -> _Screen:
        monkeypatch.setattr(loading, "open_engine", lambda layout, config: Opened(FakeEngine(config), "fake", screen))
        return screen

    install(_Screen(fails_at=2))
    assert bayesnde(*IMAGES).code != 0
    assert not (arm / "result.json").exists()
    screen = install(_Screen())
    outcome = bayesnde(*IMAGES)
    assert outcome.code == 0, outcome.err
    assert screen.n_blocks == n_blocks - 1
    found = _result(arm)
    n_kept = round(0.71428 * len(digits.target)) + round(0.14286 * len(digits.target))
    share = np.mean(digits.target[n_kept : n_kept + N_IMAGES] == 0)
    assert found["figures"]["accuracy"] == pytest.approx(share, abs=1.5 / N_IMAGES)
    assert (found["figures"]["n"], found["figures"]["n_gradients"], found["test_rows"]) == (N_IMAGES, 990.0, N_IMAGES)
    assert found["figures"]["bits_per_dimension"] > 0.0
    assert found["settings"][-1] == "prepare.train_rows=300"
    assert json.loads((arm / "prepare/manifest.json").read_text())["config"]["train_rows"] == 300
    # Without a result, but with all blocks: the same figures, and nothing is classified again.
    (arm / "result.json").unlink()
    assert bayesnde(*IMAGES).code == 0
    assert screen.n_blocks == n_blocks - 1
    assert [_result(arm)[key] for key in ("figures", "chosen", "rows_sha256")] == [
        found[key] for key in ("figures", "chosen", "rows_sha256")
    ]


# Rows: to the byte the same for our arms, for the protocol and for the competitors

# The protocol of BANK: noise on lattices, scaled to [0, 1] by all rows, the last tenth is for testing.
LATTICES = replace(EXPERIMENTS["bank"], name="lattices")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two columns of integers, one of categories, one that is continuous: the raw file of the experiment."""
    rng = np.random.default_rng(0)
    lines = [
        f"{rng.poisson(5)},{rng.integers(0, 50)},{'abc'[rng.integers(0, 3)]},{rng.normal():.9f}" for _ in range(N_ROWS)
    ]
    (tmp_path / "d.csv").write_text("\n".join(["n,m,k,x", *lines]) + "\n")
    monkeypatch.setattr(arms.experiments, "find_files", lambda *_: [tmp_path / "d.csv"])
    return [tmp_path / "d.csv"]


def _arm(experiment: Experiment = LATTICES, method: str = DEFAULT, **request: Any) -> Arm:
    return Arm(ExperimentsLayout(Path("r")), replace(experiment, test_rows=None), method, 3, Request(**request))


def _prepare(folder: str, files: list[Path], config: PrepareSettings) -> tuple[str, Tables]:
    run = RunLayout(Path(folder))
    arms.prepare_rows(run, files, config, QUIET)
    schema, found = read_tables(run)
    return rows_sha256(schema, found), found


def test_all_methods_have_the_same_rows_with_the_same_noise(table: list[Path]) -> None:
    arm, few_arm = _arm(), _arm(test_rows=10)
    digest, ours = _prepare("default", table, arm.stage_settings().prepare)
    schema, tables = competitor_tables(arm, QUIET)
    protocol, _ = _prepare("protocol", table, prepare_settings(LATTICES, None, ()))
    assert digest == protocol == rows_sha256(schema, tables)
    assert len(ours.evaluated) == 40
    # There is noise, and the competitors get it.
    moved = np.abs(make_spaces(tables, schema)["file"].evaluated.x - ours.evaluated.values)
    assert (moved[:, :3] > 0).mean() > 0.99
    assert moved[:, :3].max() <= 0.2
    # Negative controls: other noise, fewer rows.
    other = _arm(method=PAPER, settings=("prepare.seed=43",)).stage_settings().prepare
    assert _prepare("seed", table, other)[0] != digest
    few, some = _prepare("few", table, few_arm.stage_settings().prepare)
    assert few == rows_sha256(*competitor_tables(few_arm, QUIET)) != digest
    assert set(some.evaluated.row_ids) < set(ours.evaluated.row_ids)
    assert unit_interval_shift(arm, QUIET) == unit_interval_shift(few_arm, QUIET)
    # The hash covers everything that a method is given and judged by.
    schema = replace(schema, truth="truth", outlier_label="bad")
    for name, part in tables._asdict().items():
        n_rows = len(part)
        y = np.eye(2)[np.arange(n_rows) % 2]
        others = [
            replace(part, values=part.take(slice(None, None, -1)).values),
            replace(part, row_ids=part.row_ids + 1),
            replace(part, y=y),
            replace(part, y=1.0 - y),
            replace(part, labels={"bad": pa.array(np.zeros(n_rows))}),
            replace(part, labels={"truth": pa.array(part.log_jacobian)}),
        ]
        digests = {rows_sha256(schema, tables._replace(**{name: other})) for other in others}
        assert len(digests | {digest}) == 1 + len(others)


def test_simulated_rows_are_made_once_and_their_hash_is_that_of_cells_ids_and_truth(bayesnde: Callable) -> None:
    arm = _arm(EXPERIMENTS["gmm-5"], PAPER)
    (path,) = arm.data_files()
    written, simulate = path.stat().st_mtime_ns, ["simulate", "gmm", "--dim", "5", "--rows", N_ROWS, "--seed", "1024"]
    assert bayesnde(*simulate, "--out", "plain.csv").code == 0
    whole = pq.read_table(path).to_pandas().to_numpy()
    assert np.allclose(np.loadtxt("plain.csv", delimiter=",", skiprows=1), whole, rtol=1e-12)
    assert (arm.data_files(), path.stat().st_mtime_ns) == ([path], written)
    digest, found = _prepare("own", [path], arm.stage_settings().prepare)
    naive = hashlib.sha256()
    for part in found:
        cells = whole[part.row_ids]
        for array in (cells[:, :5], part.row_ids, cells[:, 5]):
            naive.update(np.ascontiguousarray(array, "<f8").tobytes())
    assert naive.hexdigest() == digest


def test_the_shift_to_the_unit_interval_is_that_of_log_densities(table: list[Path]) -> None:
    arm = _arm()
    shift = unit_interval_shift(arm, QUIET)
    run = arm.layout.prepared("lattices", "protocol", None)
    schema, parts = read_tables(run)
    noisy = [rows.x for rows in make_spaces(parts, schema)["file"]]
    whole = np.concatenate(noisy)
    assert shift == pytest.approx(np.log(whole.max(axis=0) - whole.min(axis=0)).sum(), abs=1e-6)

    # A Gaussian fitted to the training rows follows any linear scaling.
    def log_density(train: np.ndarray, evaluated: np.ndarray) -> np.ndarray:
        return np.asarray(stats.multivariate_normal(train.mean(axis=0), np.cov(train.T)).logpdf(evaluated))

    in_file = log_density(noisy[0], noisy[2])
    scaled = log_density(*(parts[index].x.astype(np.float64) for index in (0, 2)))
    assert np.allclose(scaled - in_file, shift, atol=1e-4)
    assert abs(shift) > 1.0  # otherwise the test would show nothing
    assert unit_interval_shift(_arm(replace(LATTICES, is_unit_interval=False)), QUIET) == 0.0


def test_rows_that_another_shard_is_preparing_are_waited_for(
    table: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    arm, waited = _arm(), []
    run = arm.layout.prepared("lattices", "marginal", None)
    run.stage_dir("prepare").mkdir(parents=True)
    with holding(run.claim_file("prepare")) as ours:
        assert ours is not None

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            run.claim_file("prepare").unlink(missing_ok=True)  # the other process is done

        monkeypatch.setattr(arms.stopping, "sleep", sleep)
        competitor_tables(arm, QUIET)
    assert len(waited) == 1
