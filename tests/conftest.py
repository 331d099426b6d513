"""What many tests need: the command line in this process, and where the real data sets are."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "data"
# Raw public data sets that may lie beside a checkout; tests that need them skip elsewhere.
RAW_DATA = ROOT.parent / "shared" / "data"


class Outcome(NamedTuple):
    """What a command line did."""

    code: int
    out: str
    err: str


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
def examples() -> Path:
    return EXAMPLES


@pytest.fixture
def raw_data() -> Path:
    if not RAW_DATA.is_dir():
        pytest.skip("the raw public data sets are not beside this checkout")
    return RAW_DATA
