"""The README's commands are tests: what it shows works, what it lists is what there is."""

import io
import re
import shlex
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import fake_model
import fake_training
from bayesnde_cli.cli.main import COMMANDS
from bayesnde_cli.errors import EXIT_CODES
from bayesnde_cli.settings import preset_names
from bayesnde_cli.tables.simulator_catalogue import SIMULATORS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")


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


@pytest.mark.slow
@pytest.mark.usefixtures("without_xla")
def test_the_python_example_works_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for its networks and budgets, which are smaller here."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    settings: dict[str, int] = {"warmstart.width": 16, "warmstart.depth": 1, "warmstart.steps": 300, "refine.steps": 50}
    settings |= {"density.proposal_draws": 500, "density.escalations": 0}
    code = code.replace('BayesNDE(preset="fast")', f'BayesNDE(preset="fast", settings={settings})')
    assert "settings=" in code
    with warnings.catch_warnings(action="ignore"):  # so few draws
        exec(code, {})
    assert float(capsys.readouterr().out.split()[0]) == pytest.approx(-5.05, abs=0.6)  # the mean true log-density
    assert not list(tmp_path.iterdir())


def test_ci_takes_both_commands_from_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "readme_command test-command" in script
    assert "readme_command main-command" in script


def test_every_example_command_works_as_it_stands(
    bayesnde: Callable, engines: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for training, engine and model: CI runs the main command with the real ones."""
    fake_model.install(monkeypatch, fake_model.NormalModel(n_columns=2))
    monkeypatch.chdir(tmp_path)
    brief = {"PREPARE_TEST_ROWS": 8, "PREPARE_SCALE": "standard", "WARMSTART_EPOCHS": 1, "REFINE_EPOCHS": 1}
    brief |= {"DENSITY_DRAWS": 4, "EVALUATE_BASELINES": "false", "EVALUATE_GENERATED_ROWS": 50}
    for name, value in brief.items():
        monkeypatch.setenv(f"BAYESNDE_{name}", str(value))
    Path("examples").symlink_to(ROOT / "examples")
    rows = [f"{index * 0.37 % 1:.4f},{index * 0.61 % 1:.4f},{'ab'[index % 2]},{index % 3}" for index in range(90)]
    for name in ("data.csv", "part-1.csv", "part-2.csv"):
        Path(name).write_text("\n".join(["x,y,class,note1", *rows]) + "\n")
    subprocess.run(["gzip", "part-2.csv"], check=True)
    commands = [command for command in _example_commands() if "bank-full.csv" not in command]
    assert len(commands) >= 8
    with fake_training.installed():
        for command in commands:
            *first, last = (shlex.split(part) for part in command.removesuffix(" | head -n 3").split(" | "))
            for words in first:  # its output is the input of the last one
                monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(bayesnde(*words[1:]).out.encode())))
            code, _, err = bayesnde(*last[1:])
            assert code == 0, (command, err)


@pytest.mark.parametrize("code", EXIT_CODES)
def test_every_exit_code_is_documented(code: int) -> None:
    assert re.search(rf"^\| {code} \| ", README, re.MULTILINE)


def test_every_preset_simulator_and_option_is_documented(bayesnde: Callable) -> None:
    for name in (*preset_names(), *SIMULATORS):
        assert f"`{name}`" in README, name
    mentioned = set(re.findall(r"--[a-z][a-z-]+", README))
    of_others = {"--array", "--nv", "--only", "--growth"}  # of sbatch, of apptainer, of benchmarks
    foreign = {"--quiet", "--check", "--install-completion", "--require", *of_others}
    known = {option for name in COMMANDS for option in re.findall(r"--[a-z][a-z-]+", bayesnde(name, "--help").out)}
    assert mentioned - known - foreign == set()
