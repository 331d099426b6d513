"""A terminal that is closed with the shell in it, `nohup`, and a pipe whose reader has seen enough."""

import json
import os
import pty
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fake_engine
from bayesnde_cli.artifacts.layout import claim_names
from scoring_runs import SMALL, table_bytes


def _command(run: Path, *options: str, **fake: object) -> str:
    words = [sys.executable, fake_engine.__file__, json.dumps(fake), "density", "--run", str(run), *SMALL, *options]
    return shlex.join(words)


def _until(is_so: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _on_a_terminal(script: str, until: Callable[[], object]) -> None:
    """Run a script by a shell on a terminal of its own, and close the terminal when something is so."""
    shell, master = pty.fork()
    if shell == 0:  # pragma: no cover
        os.execvp("bash", ["bash", "-c", script])
    _until(until)
    os.close(master)
    os.waitpid(shell, 0)


@pytest.mark.parametrize("is_kept", [False, True])
def test_when_its_terminal_is_closed_it_saves_and_stops_unless_it_was_told_not_to(
    is_kept: bool, run: Path, tmp_path: Path, reference: bytes, bayesnde: Callable
) -> None:
    blocks, code = run / "density/test", tmp_path / "code"
    start = f"{'nohup ' if is_kept else ''}{_command(run, seconds=0.3)}"
    # The first shell dies of it, upon which all in its foreground hear of it; the second lives on to tell the end.
    observer = f"trap : HUP; {start}; echo $? > {code}"
    _on_a_terminal(f"cd {tmp_path}; bash -c {shlex.quote(observer)}; true", lambda: list(blocks.glob("block-*")))
    _until(lambda: code.exists() and code.read_text())
    assert code.read_text() == ("0\n" if is_kept else "75\n")
    if not is_kept:
        assert not (blocks / "manifest.json").exists()
        assert not [name for name in os.listdir(blocks) if name.startswith(".tmp-") or claim_names([name])]
        assert bayesnde("density", "--run", run, *SMALL).code == 0
    assert table_bytes(run) == reference


@pytest.mark.parametrize(("options", "redirection"), [(["--out", "-"], "| head -n 2"), ([], "2>&1 | head -n 1")])
def test_a_reader_that_has_seen_enough_does_not_stop_it(
    options: list[str], redirection: str, run: Path, reference: bytes, tmp_path: Path
) -> None:
    script = f"{_command(run, *options)} {redirection}; echo ${{PIPESTATUS[0]}} > {tmp_path}/code"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (tmp_path / "code").read_text() == "0\n", done.stderr
    assert table_bytes(run) == reference
    assert "Traceback" not in done.stderr
