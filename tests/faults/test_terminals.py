"""A pipe whose reader has seen enough."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fake_engine
from scoring_runs import SMALL, table_bytes


@pytest.mark.parametrize(("options", "redirection"), [(["--out", "-"], "| head -n 2"), ([], "2>&1 | head -n 1")])
def test_a_reader_that_has_seen_enough_does_not_stop_it(
    options: list[str], redirection: str, run: Path, reference: bytes, tmp_path: Path
) -> None:
    words = [sys.executable, fake_engine.__file__, json.dumps({}), "density", "--run", str(run), *SMALL, *options]
    script = f"{shlex.join(words)} {redirection}; echo ${{PIPESTATUS[0]}} > {tmp_path}/code"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (tmp_path / "code").read_text() == "0\n", done.stderr
    assert table_bytes(run) == reference
    assert "Traceback" not in done.stderr
