"""Our default against plain and neural densities on many tables, each with its own choice of scaling, on the same rows.

    python benchmarks/tables.py --data DATA --out results autompg stock bank-1000 rings-500
    python benchmarks/tables.py --data DATA --out results --baseline nsf --baseline maf parktele
    python benchmarks/tables.py --out results --collect

DATA holds the raw public files. Every case is written as a table without exact copies of rows, fitted with the
defaults, scored and evaluated, by the command line. `NAME-1000` takes 1,000 rows of a table for fitting, and up to
1,000 of the others as test rows. `--collect` prints the table of all results as Markdown.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

PLAIN = ("gaussian", "gaussian_mixture", "gaussian_mixture_scaled", "kernel_density")
MOST_TEST_ROWS, VALIDATION_SHARE, SEED = 1000, 0.1, 1
HEADER = (
    "| table | rows | columns | mean log-density | above the best plain one by | above NSF by | above MAF by | CPU s | "
    "NSF | MAF | networks, weights |",
    "|---" * 11 + "|",
)
SIMULATORS = ("involute", "gmm", "linear-gaussian", "moons", "checkerboard", "rings")
SIMULATED_ROWS = 21_000
UCI = ("autompg", "stock", "forest", "energy", "skillcraft", "sml", "elevators", "bike")
ODDS = ("shuttle", "cardio", "pendigits")


@dataclass(frozen=True)
class Source:
    """A table before rows are taken from it, and what `prepare` must be told about it."""

    table: pd.DataFrame
    options: tuple[str, ...] = ()


def _numbered(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_axis([f"x{index}" for index in range(1, table.shape[1] + 1)], axis=1)


def _labelled(table: pd.DataFrame) -> Source:
    """The last column is a class."""
    table = _numbered(table).rename(columns={f"x{table.shape[1]}": "label"})
    return Source(table.assign(label="class " + table["label"].astype(str)), ("--condition", "label"))


def read_source(name: str, data: Path, folder: Path) -> Source:
    """The rows of a data set, in the order of its files."""
    if name == "bank":
        return Source(pd.read_csv(data / "bank/bank-full.csv", sep=";"))
    if name == "parktele":
        table = pd.read_csv(data / "parktele/parkinsons_updrs.data")
        return Source(table.iloc[:, 6:].drop(columns=["Jitter:DDP", "Shimmer:DDA"]))
    if name == "pendigits10":
        files = [data / f"pendigits10/pendigits.{part}" for part in ("tra", "tes")]
        return _labelled(pd.concat([pd.read_csv(file, header=None) for file in files]))
    if name == "vehicle":
        files = sorted((data / "vehicle").glob("xa*.dat"))
        return _labelled(pd.concat([pd.read_csv(file, header=None, sep=r"\s+").iloc[:, :19] for file in files]))
    if name == "eegeye":
        text = (data / "eegeye/EEG Eye State.arff").read_text()
        values = np.loadtxt(text.partition("@DATA")[2].split(), delimiter=",")
        middle = np.median(values[:, :-1], axis=0)
        apart = np.abs(values[:, :-1] - middle)
        values = values[(apart <= 100 * np.median(apart, axis=0)).all(axis=1)]
        return _labelled(pd.DataFrame(values).astype({14: int}))
    if name in ODDS:
        from scipy.io import loadmat

        return Source(_numbered(pd.DataFrame(loadmat(data / f"odds/{name}.mat")["X"])))
    if name == "faithful":
        return Source(pd.read_csv(data / "faithful/faithful.csv"))
    if name in UCI:
        return Source(_numbered(pd.read_csv(data / f"tables/{name}.csv.gz", header=None)))
    if name.partition("@")[0] == "adbench":
        file = next((data / "adbench").glob(f"*{name.partition('@')[2]}*.npz"))
        return Source(_numbered(pd.DataFrame(np.load(file)["X"])))
    assert name in SIMULATORS, name
    path = folder / f"{name}.csv"
    run_command("simulate", name, "--rows", SIMULATED_ROWS, "--seed", SEED, "--out", path)
    return Source(pd.read_csv(path), ("--truth", "true_log_density"))


def write_case(case: str, data: Path, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The table of a case as a file, and the options of `prepare`."""
    name, _, size = case.rpartition("-") if case.rpartition("-")[2].isdigit() else (case, "", "")
    source = read_source(name, data, folder)
    table = source.table.drop_duplicates(ignore_index=True)
    options = (*source.options, "--test-rows", str(MOST_TEST_ROWS))
    if size:
        n = int(size)
        table = table.sample(frac=1.0, random_state=SEED, ignore_index=True)[: n + MOST_TEST_ROWS]
        n_validation = round(VALIDATION_SHARE * n)
        parts = np.repeat(["validation", "train", "test"], [n_validation, n - n_validation, len(table) - n])
        table["part"], options = parts, (*options, "--split-column", "part")
    train = table[table["part"] == "train"] if size else table
    table = table.drop(columns=[column for column in source.table if train[column].nunique() < 2])
    path = folder / "table.csv"
    table.to_csv(path, index=False)
    return path, options


def run_command(*arguments: object) -> float:
    """CPU seconds of a command of the package."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "bayesnde_cli", *map(str, arguments)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def run_case(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """Fit, score and evaluate a case; its figures."""
    folder = options.out / case
    folder.mkdir(parents=True, exist_ok=True)
    run, found = folder / "run", folder / "result.json"
    figures = json.loads(found.read_text()) if found.exists() else {"case": case, "cpu_seconds": {}}
    seconds, common = figures["cpu_seconds"], ("--run", run, "-q")
    more = [word for text in options.set for word in ("--set", text)]
    if not (run / "prepare/manifest.json").exists():
        path, known = write_case(case, options.data, folder)
        seconds["prepare"] = run_command("prepare", path, *known, *common, *more)
    stages: Sequence[tuple[str, tuple[object, ...]]] = (
        ("warmstart", ("--threads", options.threads)),
        ("refine", ("--threads", options.threads)),
        ("density", ("--threads", options.threads)),
        ("evaluate", ("--threads", options.threads, "--no-baselines")),
    )
    for stage, words in stages:
        if stage not in seconds:
            own = [word for text in options.set if text.startswith(stage) for word in ("--set", text)]
            seconds[stage] = run_command(stage, *words, *common, *own)
            found.write_text(json.dumps(figures, indent=1))
    for baseline in ("plain", *options.baseline):
        if baseline not in seconds:
            words = ("--baselines",) if baseline == "plain" else ("--no-baselines", "--baseline", baseline)
            seconds[baseline] = run_command("evaluate", *words, *common, "--restart") - seconds["evaluate"]
            metrics = json.loads((run / "evaluate/test/metrics.json").read_text())
            figures.setdefault("baselines", {}).update(metrics["baselines"])
            figures |= {name: metrics[name] for name in ("mean_log_density", "mean_log_density_se", "truth", "rows")}
            figures |= describe(run)
            found.write_text(json.dumps(figures, indent=1))
    return figures


def describe(run: Path) -> dict[str, Any]:
    """The table's size, and what was chosen for it."""

    def result(stage: str) -> dict[str, Any]:
        return dict(json.loads((run / stage / "manifest.json").read_text()))

    def n_rows(part: str) -> int:
        return int(pq.ParquetFile(run / f"prepare/{part}.parquet").metadata.num_rows)

    warmstart, refine = result("warmstart"), result("refine")
    return {
        "n_rows": n_rows("train") + n_rows("validation"),
        "n_features": len(json.loads((run / "prepare/schema.json").read_text())["features"]),
        "recipe": {name: warmstart["config"][name] for name in ("width", "depth", "weight_decay")},
        "members": refine["result"]["members"],
        "chosen": refine["result"]["chosen"],
    }


def gain_over(figures: dict[str, Any], names: Sequence[str]) -> tuple[float, float, str]:
    """How far ours is above the best of some baselines, with its standard error, and the name of that one."""
    own = {name: figures["baselines"][name] for name in names if name in figures["baselines"]}
    known = {name: figure for name, figure in own.items() if figure["gain"] is not None}
    if not known:
        return np.nan, np.nan, ""
    best = min(known, key=lambda name: known[name]["gain"])
    return known[best]["gain"], known[best]["gain_se"], best


def line(figures: dict[str, Any]) -> str:
    """A row of the table."""
    cells = [figures["case"], str(figures["n_rows"]), str(figures["n_features"])]
    cells.append(f"{figures['mean_log_density']:.3f}")
    for names in (PLAIN, ("nsf",), ("maf",)):
        gain, se, best = gain_over(figures, names)
        mark = "**" if gain < -2 * se else ""
        cells.append(
            "" if np.isnan(gain) else f"{mark}{gain:+.3f} ± {2 * se:.3f}{mark} {best if names is PLAIN else ''}"
        )
    seconds = figures["cpu_seconds"]
    cells.append(f"{sum(seconds[stage] for stage in ('prepare', 'warmstart', 'refine', 'density')):.0f}")
    cells += [f"{seconds[name]:.0f}" if name in seconds else "" for name in ("nsf", "maf")]
    recipe = figures["recipe"]
    weights = " ".join(f"{weight:.2f}" for _, weight in sorted(figures["members"].items(), key=lambda item: -item[1]))
    cells.append(f"{recipe['width']}x{recipe['depth']} {weights}")
    return "| " + " | ".join(cells) + " |"


def count_results(results: Sequence[dict[str, Any]]) -> list[str]:
    """How often ours is above and below others by more than two standard errors."""
    lines = []
    for label, names in (("the best plain estimator", PLAIN), ("NSF", ("nsf",)), ("MAF", ("maf",))):
        found = [gain_over(figures, names) for figures in results]
        errors = [gain / se for gain, se, best in found if best and se > 0.0]
        if errors:
            above, below = sum(own > 2.0 for own in errors), sum(own < -2.0 for own in errors)
            lines.append(
                f"Of {len(errors)} tables ours is clearly above {label} on {above} and clearly below on {below}."
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the raw files")
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--baseline", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--collect", action="store_true")
    options = parser.parse_args()
    if options.collect:
        files = sorted(options.out.glob("*/result.json"))
        results = [figures for figures in (json.loads(file.read_text()) for file in files) if "baselines" in figures]
        print("\n".join([*HEADER, *map(line, results), "", *count_results(results)]))
        return
    for case in options.cases:
        try:
            print(line(run_case(case, options)), flush=True)
        except RuntimeError as error:
            print(f"{case}: {error}", flush=True)


if __name__ == "__main__":
    main()
