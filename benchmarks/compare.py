"""CPU time of training and scoring in this checkout and in another one, through the command line.

    python benchmarks/compare.py --against OTHER/src
    python benchmarks/compare.py --against OTHER/src --rows 64 --steps 500

Both checkouts fit the same simulated table with the same settings. A stage runs with a small and with a large amount of
work, in processes of its own: the difference is the time of the work alone, without imports and compilation. The two
checkouts take turns, and the least time of `--repeat` runs counts. A ratio below 1 means that this checkout is faster.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parents[1] / "src"
BLOCKS = (1, 3)


def cpu_seconds(source: Path, *arguments: object) -> float:
    """User and system time of a command of the package in this source folder, on one thread."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "bayesnde_cli", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(source: Path, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of each stage with little and with much work, and their difference for one unit of work."""
    few, many = options.steps // 5, options.steps
    table = folder / "table.csv"
    cpu_seconds(source, "simulate", "gmm", "--dim", "5", "--rows", "2000", "--seed", "1", "--out", table)
    files = [folder / f"{n_blocks}.csv" for n_blocks in BLOCKS]
    for file, n_blocks in zip(files, BLOCKS, strict=True):
        n_rows = n_blocks * options.rows
        cpu_seconds(source, "simulate", "gmm", "--dim", "5", "--rows", n_rows, "--seed", "2", "--out", file)
    found = {}
    runs = [folder / f"run-{steps}" for steps in (few, many)]
    for stage in ("warmstart", "refine"):
        for run, steps in zip(runs, (few, many), strict=True):
            if stage == "warmstart":
                cpu_seconds(source, "prepare", table, "--scale", "standard", "--run", run, "-q")
            networks = ["--column-steps", 0, "--width", 256, "--depth", 5] if stage == "warmstart" else []
            budget = ["--steps", steps, "--checks", 1, "--threads", 1, "--weight-decay", 0, *networks]
            found[f"{stage}, {steps} steps"] = cpu_seconds(source, stage, "--run", run, *budget, "-q")
        difference = found[f"{stage}, {many} steps"] - found[f"{stage}, {few} steps"]
        found[f"{stage}, 1,000 steps"] = 1000 * difference / (many - few)
    scoring = ["--block-rows", options.rows, "--escalations", 0, "--threads", 1, "-q"]
    seconds = [cpu_seconds(source, "density", file, "--run", runs[0], *scoring) for file in files]
    found |= {f"density, {n_blocks} blocks": taken for n_blocks, taken in zip(BLOCKS, seconds, strict=True)}
    found[f"density, a block of {options.rows} rows"] = (seconds[1] - seconds[0]) / (BLOCKS[1] - BLOCKS[0])
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure both checkouts and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--against", type=Path, required=True, metavar="SRC", help="source folder of the other checkout"
    )
    parser.add_argument("--rows", type=int, default=128, help="rows of a block")
    parser.add_argument("--steps", type=int, default=2000, help="training steps")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each checkout")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args(argv)
    sources = {"this": HERE, "other": options.against.resolve()}
    times: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    for _ in range(options.repeat):
        for name, source in sources.items():
            with tempfile.TemporaryDirectory(prefix="bayesnde-compare-") as folder:
                times[name].append(measure(source, Path(folder), options))
    rows = {}
    print(f"{'CPU seconds':<34}{'this':>9}{'other':>9}{'ratio':>8}")
    for part in times["this"][0]:
        this, other = (min(found[part] for found in times[name]) for name in sources)
        rows[part] = {"this": this, "other": other, "ratio": this / other}
        print(f"{part:<34}{this:>9.2f}{other:>9.2f}{this / other:>8.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
