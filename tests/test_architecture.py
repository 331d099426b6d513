"""The walls of the house: which room may import which, and what must not be imported to answer quickly."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "bayesnde_cli"
GROUND = {"config", "errors", "headers", "rng"}
# {cli, estimator} -> stages -> {data, training, inference, evaluation, artifacts} -> model -> GROUND
ALLOWED = {
    "cli": {"cli", "stages", "data", "artifacts", "evaluation", "report", *GROUND},
    # The other front: from Python. It speaks, if at all, with the voice of the command line.
    "estimator": {"estimator", "cli", "stages", "data", "artifacts", *GROUND},
    "stages": {"stages", "report", "data", "training", "inference", "evaluation", "artifacts", "model", *GROUND},
    "report": {"report", *GROUND},
    "data": {"data", *GROUND},
    "training": {"training", "model", *GROUND},
    "inference": {"inference", "model", *GROUND},
    "evaluation": {"evaluation", "model", *GROUND},
    "artifacts": {"artifacts", *GROUND},
    "model": {"model", *GROUND},
    "presets": set(),
    "config": {"config", "errors", "presets"},
    "errors": set(),
    "headers": {"headers"},
    "rng": set(),
}


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _imports(source: str) -> set[str]:
    """The rooms of this package that a module imports."""
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "bayesnde_cli":
                names = [f"bayesnde_cli.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("bayesnde_cli.")}
    return rooms - {"__version__"}


def _forbidden(room: str, source: str) -> set[str]:
    return _imports(source) - ALLOWED[room]


@pytest.mark.parametrize("module", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_the_rooms_below(module: Path) -> None:
    parts = module.relative_to(PACKAGE).with_suffix("").parts
    if parts[0] in ("__init__", "__main__"):
        return
    assert _forbidden(parts[0], module.read_text("utf-8")) == set()


def test_the_import_rule_can_fail() -> None:
    assert _forbidden("data", "from bayesnde_cli.artifacts.layout import RunLayout") == {"artifacts"}
    assert _forbidden("model", "from bayesnde_cli import stages") == {"stages"}


def test_only_the_artifacts_room_and_its_callers_know_file_names_of_a_run() -> None:
    for room in ("data", "model", "training", "inference", "evaluation"):
        for module in (PACKAGE / room).rglob("*.py"):
            assert "manifest.json" not in module.read_text("utf-8"), module


@pytest.mark.parametrize("room", ["data", "model", "training", "inference", "evaluation", "artifacts"])
def test_the_rooms_below_never_print(room: str) -> None:
    for module in (PACKAGE / room).rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(module.read_text("utf-8"))) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"], module


def _imported_by(arguments: list[str], cwd: Path) -> set[str]:
    """The top-level packages that a command line has imported when it ends."""
    code = (
        "import sys; from bayesnde_cli.cli.main import run; "
        f"run({arguments!r}); print('@', *{{name.split('.')[0] for name in sys.modules}}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True)
    return set(done.stderr.rpartition("@")[2].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["prepare", "--help"],
        ["warmstart", "--help"],
        ["density", "--help"],
        ["evaluate", "--help"],
        ["sample", "--help"],
        ["outliers", "--help"],
        ["classify", "--help"],
        ["grid", "--help"],
        ["reproduce", "--help"],
        ["reproduce", "--list"],
        ["simulate", "--help"],
        ["slurm", "--help"],
        ["status"],
        ["--version"],
    ],
)
def test_help_and_status_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    heavy = {"tensorflow", "keras", "numpy", "scipy", "sklearn", "pyarrow", "rich", "pandas"}
    assert _imported_by(arguments, tmp_path) & heavy == set()


def test_the_check_of_lazy_imports_can_fail(tmp_path: Path) -> None:
    assert "numpy" in _imported_by(["simulate", "gmm", "--rows", "1"], tmp_path)


def test_prepare_does_not_import_tensorflow(tmp_path: Path) -> None:
    example = PACKAGE.parents[1] / "examples" / "data" / "faithful.csv"
    imported = _imported_by(["prepare", str(example)], tmp_path)
    assert "pyarrow" in imported
    assert imported & {"tensorflow", "keras"} == set()
    # scikit-learn takes a second to import: only where there is a choice to make.
    imported = _imported_by(["prepare", str(example), "--scale", "marginal", "--run", "other"], tmp_path)
    assert "sklearn" not in imported
