"""The size of the house: `python tests/house.py` prints its counts.

`--walk` also fits a small table and counts the files that one row passes on its way from the CSV to the report.
"""

import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "bayesnde_cli"
# Names that Python gives a meaning of its own.
_SPECIAL = {"__init__", "__main__"}
_WALK = """
import json, sys
from pathlib import Path
from bayesnde_cli.cli.main import run
code = run(sys.argv[1:])
package = Path(sys.modules["bayesnde_cli"].__file__).parent
files = {Path(m.__file__) for n, m in list(sys.modules.items()) if n.split(".")[0] == "bayesnde_cli" and m.__file__}
print("@" + json.dumps([code, sorted(str(file.relative_to(package)) for file in files)]), file=sys.stderr)
"""


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def n_lines(files: list[Path]) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in files)


def n_import_lines(file: Path) -> int:
    """Lines of a file that are import statements, wherever they stand."""
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    spans = [(node.lineno, node.end_lineno or 0) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum(last - first + 1 for first, last in spans)


def repeated_names() -> list[str]:
    """Module names that several files of the package have."""
    names = Counter(file.stem for file in sources(PACKAGE) if file.stem not in _SPECIAL)
    return sorted(name for name, count in names.items() if count > 1)


def counts() -> dict[str, float]:
    files, tests = sources(PACKAGE), sources(ROOT / "tests")
    lines = n_lines(files)
    return {
        "src files": len(files),
        "src lines": lines,
        "mean lines of a src file": lines / len(files),
        "import lines, % of src": 100 * sum(map(n_import_lines, files)) / lines,
        "module names used twice": len(repeated_names()),
        "fmt: skip": sum(file.read_text("utf-8").count("# fmt: skip") for file in files),
        "tests lines": n_lines(tests),
    }


def walk() -> list[str]:
    """The files of the package that a small `fit`, from CSV to report, has imported when it ends."""
    with tempfile.TemporaryDirectory() as folder:
        small = ["warmstart.steps=20", "warmstart.width=8", "refine.steps=5", "prepare.test_rows=8"]
        settings = [word for text in small for word in ("--set", text)]
        data = ROOT / "examples" / "data" / "faithful.csv"
        arguments = ["fit", str(data), "--run", f"{folder}/run", "--quiet", *settings]
        command = [sys.executable, "-c", _WALK, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, files = json.loads(done.stderr.rpartition("@")[2])
    assert code == 0, done.stderr
    return list(files)


def main() -> None:
    for name, value in counts().items():
        print(f"{name:28} {value:10,.1f}".removesuffix(".0"))
    if repeated_names():
        print("used twice:", ", ".join(repeated_names()))
    if "--walk" in sys.argv:
        files = walk()
        lines = n_lines([PACKAGE / file for file in files])
        print(f"{'files that one row passes':28} {len(files):10,}")
        print(f"{'lines in these files':28} {lines:10,}")


if __name__ == "__main__":
    main()
