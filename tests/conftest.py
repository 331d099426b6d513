"""Shared fixtures: the command line in this process, a run to score rows with, where the real data sets are."""

import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bayesnde_cli.stages import loading

# What is started in the background, or by nohup, may ignore these, and would hand that on to the processes of tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "data"
# Raw public data sets that may lie beside a checkout; tests that need them skip elsewhere.
RAW_DATA = ROOT.parent / "shared" / "data"


class Outcome(NamedTuple):
    """What a command line did."""

    code: int
    out: str
    err: str


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with slow tests run first: at the end, no worker waits long for another one."""
    n_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -n_slow[item.path])  # stable: a module stays in one piece


@pytest.fixture
def bayesnde(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs a command line in this process."""
    from bayesnde_cli.cli.main import run

    monkeypatch.delenv("BAYESNDE_RUN", raising=False)

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def without_xla(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs run as TensorFlow's own graphs: slower, but ready sooner."""
    import plain_graphs
    from bayesnde_cli.inference import importance

    importance.marginal_scorer.cache_clear()  # it keeps programs of other tests, and would keep these
    plain_graphs.install(monkeypatch.setattr)
    yield
    importance.marginal_scorer.cache_clear()


@pytest.fixture
def examples() -> Path:
    return EXAMPLES


@pytest.fixture
def raw_data() -> Path:
    if not RAW_DATA.is_dir():
        pytest.skip("the raw public data sets are not beside this checkout")
    return RAW_DATA


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a condition, a lattice, row names and what looks like a refined model. Not to be written to."""
    import numpy as np

    import fake_engine
    from bayesnde_cli.cli.main import run

    folder = tmp_path_factory.mktemp("fitted")
    rng = np.random.default_rng(0)
    lines = ["a,b,n,k,name,true_log_density"]
    for index in range(620):
        k = rng.integers(0, 2)
        lines.append(
            f"{rng.normal() + k:.6f},{rng.gamma(2.0):.6f},{rng.poisson(4)},{'uv'[k]},r{index},{-index / 7:.3f}"
        )
    (folder / "d.csv").write_text("\n".join(lines) + "\n")
    options = ["--condition", "k", "--id", "name", "--run", str(folder / "run"), "-q"]
    assert run(["prepare", str(folder / "d.csv"), *options]) == 0
    fake_engine.pretend_refined(folder / "run")
    return folder / "run"


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    """A copy of the fitted run, to work on. Tests of other stages have a `run` of their own."""
    return Path(shutil.copytree(fitted, tmp_path / "run"))


@pytest.fixture(scope="session")
def reference(fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """density.parquet of the test rows, from one process."""
    import fake_engine
    from bayesnde_cli.cli.main import run

    calm = shutil.copytree(fitted, tmp_path_factory.mktemp("calm") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "open_engine", loading.open_engine)  # put back afterwards
        fake_engine.install()
        assert run(["density", "--run", str(calm), *fake_engine.SMALL, "-q"]) == 0
    return Path(calm / "density/test/density.parquet").read_bytes()


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list:
    """The engines that this process opens from now on: fake ones."""
    import fake_engine

    monkeypatch.setattr(loading, "open_engine", loading.open_engine)  # put back afterwards
    return fake_engine.install()


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch) -> list:
    """The draws and engines that this process opens from now on: those of a linear model."""
    import linear_model

    monkeypatch.setattr(loading, "open_engine", loading.open_engine)  # put back afterwards
    monkeypatch.setattr(loading, "open_prior", loading.open_prior)
    return linear_model.install()
