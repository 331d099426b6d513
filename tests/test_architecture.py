"""The walls of the house: which room may import which, and what must not be imported to answer quickly."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from bayesnde_cli.cli.main import COMMANDS

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "bayesnde_cli"
GROUND = {"settings", "errors", "rng", "stopping", "formatting", "rows"}
# Rooms from the top of the house to its ground; each may import itself, and what stands beside it here.
ALLOWED = {
    "cli": {"stages", "answers", "report", "cluster", "reproduce", "tables", "runs", *GROUND},
    "estimator": {"cli", "stages", "answers", "tables", "runs", *GROUND},
    "reproduce": {"stages", "answers", "report", "competitors", "tables", "runs", "model", *GROUND},
    "answers": {"stages", "report", "tables", "scaling", "inference", "runs", *GROUND},
    "stages": {
        *("report", "competitors", "cluster"),  # `evaluate` writes the report, `status` asks the queue
        *("tables", "scaling", "training", "inference", "model", "runs"),
        *GROUND,
    },
    "competitors": {"tables", "training", "inference", "model", *GROUND},
    "report": {"tables", "inference", "runs", "model", *GROUND},
    "training": {"inference", "model", "tables", "scaling", "runs", *GROUND},
    "tables": {"scaling", "runs", *GROUND},
    "inference": {"model", *GROUND},
    "cluster": {"runs", *GROUND},
    "runs": GROUND,
    "scaling": GROUND,
    "model": GROUND,
    "settings": {"errors"},
    "formatting": {"errors"},
    "stopping": {"errors"},
    "rows": {"rng"},
    "errors": set(),
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
    return _imports(source) - ALLOWED[room] - {room}


@pytest.mark.parametrize("module", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_the_rooms_below(module: Path) -> None:
    parts = module.relative_to(PACKAGE).with_suffix("").parts
    if parts[0] in ("__init__", "__main__"):
        return
    assert _forbidden(parts[0], module.read_text("utf-8")) == set()


def test_the_import_rule_can_fail() -> None:
    assert _forbidden("model", "from bayesnde_cli.runs.layout import RunLayout") == {"runs"}
    assert _forbidden("model", "from bayesnde_cli import stages") == {"stages"}


def test_the_rooms_below_the_stages_do_not_name_the_manifest() -> None:
    for room in ("tables", "scaling", "model", "training", "inference", "competitors"):
        for module in (PACKAGE / room).rglob("*.py"):
            assert "manifest.json" not in module.read_text("utf-8"), module


@pytest.mark.parametrize("room", ["tables", "scaling", "model", "training", "inference", "competitors", "runs"])
def test_the_rooms_below_never_print(room: str) -> None:
    for module in (PACKAGE / room).rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(module.read_text("utf-8"))) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"], module


def _imported_by(lines: list[list[str]], cwd: Path) -> set[str]:
    """The top-level packages that these command lines, in one process, have imported when the last one ends."""
    code = (
        "import sys; from bayesnde_cli.cli.main import run; "
        f"[run(line) for line in {lines!r}]; "
        "print('@', *{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True)
    return set(done.stderr.rpartition("@")[2].split())


def test_help_and_status_import_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"tensorflow", "keras", "matplotlib", "jinja2", "numpy", "scipy", "sklearn", "pyarrow", "rich", "pandas"}
    pages = [[name, "--help"] for name in COMMANDS]
    assert (
        _imported_by([["--help"], *pages, ["reproduce", "--list"], ["status"], ["--version"]], tmp_path) & heavy
        == set()
    )


def test_prepare_does_not_import_tensorflow(tmp_path: Path) -> None:
    example = PACKAGE.parents[1] / "examples" / "data" / "faithful.csv"
    # scikit-learn takes a second to import: only where there is a scaling to choose.
    imported = _imported_by([["prepare", str(example), "--scale", "marginal"]], tmp_path)
    assert "pyarrow" in imported
    assert imported & {"tensorflow", "keras", "sklearn"} == set()
