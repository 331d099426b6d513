"""The README's commands are tests: what it shows works, what it lists is what there is."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bayesnde_cli.cli.commands import COMMANDS
from bayesnde_cli.config import preset_names
from bayesnde_cli.data.simulators import SIMULATORS
from bayesnde_cli.errors import EXIT_CODES

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")


# The commands as they stand, on little: how well `fast` fits is seen where the main command runs.
_BRIEF = {
    "BAYESNDE_PREPARE_TEST_ROWS": "40", "BAYESNDE_WARMSTART_STEPS": "100", "BAYESNDE_WARMSTART_CHECKS": "1",
    "BAYESNDE_REFINE_STEPS": "100", "BAYESNDE_REFINE_CHECKS": "1", "BAYESNDE_DENSITY_BLOCK_ROWS": "40",
    "BAYESNDE_DENSITY_ESCALATIONS": "0", "BAYESNDE_EVALUATE_TYPICALITY_ROWS": "50",
}  # fmt: skip


def _block(mark: str) -> str:
    found = re.search(rf"<!-- {mark} -->\n```sh\n(.*?)```", README, re.DOTALL)
    assert found is not None, mark
    return found[1].strip()


def _example_commands() -> list[str]:
    """The commands of the README on files that a checkout has, or that commands before made."""
    blocks = re.findall(r"(?<!-->\n)```sh\n(.*?)```", README, re.DOTALL)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("bayesnde")]


def test_the_two_commands_are_one_line_each_and_make_their_own_environment() -> None:
    for mark, environment in (("main-command", ".venv"), ("test-command", ".venv-test")):
        command = _block(mark)
        assert "\n" not in command
        assert command.startswith(f"python3 -m venv {environment} && {environment}/bin/pip install")
    assert README.index("main-command") < README.index("test-command") < 1600


def test_the_python_example_works_as_it_stands(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) == pytest.approx(-5.05, abs=0.6)  # the mean true log-density of these rows
    assert not list(tmp_path.iterdir())


def test_ci_takes_both_commands_from_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "readme_command test-command" in script
    assert "readme_command main-command" in script


def test_every_example_command_works_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in ("data.csv", "part-1.csv"):
        rows = "\n".join(
            f"{index * 0.37 % 1:.4f},{index * 0.61 % 1:.4f},{'ab'[index % 2]},{index % 3}" for index in range(90)
        )
        (tmp_path / name).write_text(f"x,y,class,note1\n{rows}\n")
    subprocess.run("gzip -k -c part-1.csv > part-2.csv.gz", shell=True, cwd=tmp_path, check=True)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    launcher = bin_folder / "bayesnde"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m bayesnde_cli "$@"\n')
    launcher.chmod(0o755)
    commands = [command for command in _example_commands() if "bank-full.csv" not in command]
    assert len(commands) >= 8
    for command in commands:
        script = f"set -o pipefail; PATH={bin_folder}:$PATH; {command}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **_BRIEF}
        )
        assert done.returncode == 0, (command, done.stderr)


@pytest.mark.parametrize("code", EXIT_CODES)
def test_every_exit_code_is_documented(code: int) -> None:
    assert re.search(rf"^\| {code} \| ", README, re.MULTILINE)


def test_every_preset_simulator_and_option_is_documented(bayesnde: Callable) -> None:
    for name in (*preset_names(), *SIMULATORS):
        assert f"`{name}`" in README, name
    mentioned = set(re.findall(r"--[a-z][a-z-]+", README))
    of_others = {"--array", "--nv", "--only"}  # sbatch's, apptainer's, of benchmarks/images.py
    foreign = {"--quiet", "--check", "--install-completion", "--require", *of_others}
    known = {option for name in COMMANDS for option in re.findall(r"--[a-z][a-z-]+", bayesnde(name, "--help").out)}
    assert mentioned - known - foreign == set()
