"""What it costs to score rows by each method, and how wrong and how honest the scores of fitted runs are.

    python benchmarks/scoring.py RUN RUN --rows 1000 --checked 200
    python benchmarks/scoring.py --growth rows columns latents
    python benchmarks/scoring.py RUN --alone --start --json scoring.json

Of each run, test rows are scored by `--method auto` and some of them by `--method bridge`, each twice with the same
seed: the first time compiles. All times are CPU times of this process. Errors are those against bridges with 16 times
the draws of the default; "covered" is the share of rows whose 95 % interval, with the reference's error, holds it.
With `--alone` the members of closed forms are left out: they make the errors smaller, and allow larger ones.

`--start` scores two rows that the model made up with `bayesnde density two.csv --out -`, and in Python two rows after
two others: the second time nothing is compiled. Nothing is written to the run.

Growth is that of models with random weights, nearly linear, which score rows that they made up; rows have a tiny model,
columns and latents the default's. Of many rows, blocks evenly spaced are scored.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from timing import parser_of, print_cases, write_json

from bayesnde_cli.inference.bridge import METHODS
from bayesnde_cli.model.backend import load_tensorflow
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import DensitySettings
from bayesnde_cli.stages import loading
from bayesnde_cli.tables.model_rows import read_split

REFERENCE: dict[str, Any] = {"method": "bridge", "warm_up": 400, "draws": 1600, "proposal_draws": 40_000}
SEED = 1
# Rows, columns, latents and width of the models that show how cost grows.
GROWTH = {
    "rows": [(n, 2, 2, 16) for n in (100, 1000, 10_000, 100_000, 1_000_000)],
    "columns": [(256, p, min(p, 16), 256) for p in (2, 5, 10, 20, 50, 100)],
    "latents": [(256, 32, d, 256) for d in (1, 2, 4, 8, 16, 32)],
}
# Factor on the latents of these models: networks of random weights have many modes, fitted ones have few.
_NEARLY_LINEAR = 0.25
# A block of rows is scored at once, as by `density`, and at most so many blocks.
BLOCK, MOST_BLOCKS = 256, 40


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """User and system time of all threads, and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def estimate(engine: Any, rows: Rows) -> dict[str, np.ndarray]:
    """The columns of rows, block by block; of many blocks, some that are evenly spaced."""
    starts = range(0, len(rows), BLOCK)
    parts = [
        engine.estimate(rows.take(np.arange(first, min(first + BLOCK, len(rows)))), SEED + first)
        for first in starts[:: max(1, -(-len(starts) // MOST_BLOCKS))]
    ]
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def twice(engine: Any, rows: Rows) -> tuple[float, float, dict[str, np.ndarray]]:
    """CPU seconds that compiling took, CPU seconds of the second time, and its figures."""
    first, _ = cpu_seconds(lambda: estimate(engine, rows))
    second, scores = cpu_seconds(lambda: estimate(engine, rows))
    return first - second, second, scores


# A fitted run


def run_figures(
    run: Path, n_rows: int, n_checked: int, threads: int | None, *, is_alone: bool = False
) -> dict[str, Any]:
    """Speed, methods and errors of the test rows of a run."""
    layout, auto = RunLayout(run), DensitySettings(seed=0, threads=threads)
    rows = read_split(layout, "test")
    rows = rows.take(np.arange(min(n_rows, len(rows))))
    some = rows.take(np.arange(min(n_checked, len(rows))))
    bridge = auto.model_copy(update={"method": "bridge"})

    def open_engine(settings: DensitySettings) -> Any:
        engine = loading.open_engine(layout, settings).engine
        return getattr(engine, "engine", engine) if is_alone else engine  # that of the fitted model within a stack

    start, seconds, scores = twice(open_engine(auto), rows)
    bridge_start, bridge_seconds, bridged = twice(open_engine(bridge), some)
    found: dict[str, Any] = {
        "run": run.resolve().parent.name if run.name == "run" else run.name,
        "rows": len(rows),
        "columns": rows.x.shape[1],
        "rows_per_cpu_second": len(rows) / seconds,
        "rows_per_hour": 3600 * len(rows) / seconds,
        "bridged_per_cpu_second": len(some) / bridge_seconds,
        "ratio": len(rows) / seconds / (len(some) / bridge_seconds),
        "compiling_cpu_seconds": {"auto": start, "bridge": bridge_start},
        "shares": {method: float((scores["method"] == method).mean()) for method in METHODS},
    }
    if n_checked:
        reference = open_engine(bridge.model_copy(update=REFERENCE)).estimate(some, SEED + 1)
        found["errors"] = {
            name: errors(some_scores, reference, scores["method"][: len(some)])
            for name, some_scores in (("auto", scores), ("bridge", bridged))
        }
    return found


def errors(scores: dict[str, Any], reference: dict[str, Any], method: np.ndarray) -> dict[str, Any]:
    """Errors of the rows that scores and reference call reliable: of all, and by method."""
    n = len(method)
    error = scores["log_density_scaled"][:n] - reference["log_density_scaled"]
    se = np.hypot(scores["mc_se"][:n], reference["mc_se"])
    is_counted = scores["reliable"][:n] & reference["reliable"]
    kinds = {"all": is_counted} | {name: is_counted & (method == name) for name in METHODS}
    return {
        name: {
            "rows": int(kind.sum()),
            "median": float(np.median(np.abs(error[kind]))),
            "largest": float(np.abs(error[kind]).max()),
            "mean": float(error[kind].mean()),
            "covered": float(np.mean(np.abs(error[kind]) < 1.96 * se[kind])),
        }
        for name, kind in kinds.items()
        if kind.any()
    }


def print_run(found: dict[str, Any]) -> None:
    """Both tables of one run."""
    print(f"{found['run']}: {found['rows']} rows, {found['columns']} columns")
    rate, compiling = found["rows_per_cpu_second"], found["compiling_cpu_seconds"]
    shares = ", ".join(f"{name} {share:.1%}" for name, share in found["shares"].items())
    print(
        f"  auto    {rate:8.1f} rows per CPU second, {3600 * rate:,.0f} per hour; compiling {compiling['auto']:.1f} s"
    )
    print(
        f"  bridge  {found['bridged_per_cpu_second']:8.1f} rows per CPU second; compiling {compiling['bridge']:.1f} s"
    )
    print(f"  ratio   {found['ratio']:8.1f}; {shares}")
    if "start" in found:
        print(
            "  two rows: {shell:.1f} CPU s from the shell; in Python {first:.2f}, later {later:.3f}".format(
                **found["start"]
            )
        )
    for scored_by, kinds in found.get("errors", {}).items():
        for name, kind in kinds.items():
            print(
                f"  {scored_by + ', ' + name:<18}{kind['rows']:>5} rows: median |error| {kind['median']:.4f}, "
                f"largest {kind['largest']:.4f}, mean {kind['mean']:+.4f}, covered {kind['covered']:.1%}"
            )


def start_figures(run: Path) -> dict[str, float]:
    """CPU seconds of two rows from the shell, and in Python the first time and at the median of later times."""
    from bayesnde_cli.estimator import BayesNDE

    with tempfile.TemporaryDirectory() as folder:
        copy, two = Path(folder) / "run", Path(folder) / "two.csv"
        shutil.copytree(run, copy)
        command = [sys.executable, "-m", "bayesnde_cli"]
        options: dict[str, Any] = {
            "check": True,
            "capture_output": True,
            "env": os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        }
        subprocess.run([*command, "sample", "2", "--run", copy, "--out", two], **options)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "density", two, "--run", copy, "--threads", "1", "--out", "-"], **options)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        model = BayesNDE.load(copy)
        made = model.sample(20, random_state=SEED)
        x, y = made if isinstance(made, tuple) else (made, None)
        seconds = []
        for first in range(0, 20, 2):
            x_two, y_two = (None if part is None else part[first : first + 2] for part in (x, y))
            seconds.append(cpu_seconds(lambda x=x_two, y=y_two: model.score_samples(x, y))[0])
    shell = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"shell": shell, "first": seconds[0], "later": float(np.median(seconds[1:]))}


# Growth


def random_model(p: int, d: int, width: int) -> Any:
    """A model of the default width and depth with random weights, nearly linear."""
    from bayesnde_cli.inference.fitted_model import FittedModel
    from bayesnde_cli.model.coders import decoder_of, decoder_spec, encoder_of, encoder_spec, initial_autoencoder

    decoder, encoder = (replace(spec_of(d, p), width=width, kind="mlp") for spec_of in (decoder_spec, encoder_spec))
    weights = initial_autoencoder(decoder, encoder, SEED)
    decode = decoder_of(decoder, weights)
    return FittedModel(lambda z, y=None: decode(_NEARLY_LINEAR * z, y), d, encoder_of(encoder, weights), n_columns=p)


def made_up_rows(model: Any, n_rows: int) -> Rows:
    """Rows drawn from the model."""
    rng = np.random.default_rng(SEED)
    mean, variance, *_ = model.decoder(rng.standard_normal((n_rows, model.latent_dim), np.float32))
    noise = rng.standard_normal(mean.shape, np.float32)
    return Rows(mean.numpy() + np.sqrt(variance.numpy()) * noise, None, None)


def growth(name: str, threads: int | None) -> Iterator[dict[str, Any]]:
    """Cost of one size after the other."""
    from bayesnde_cli.inference.tiers import TieredEngine

    for n_rows, p, d, width in GROWTH[name]:
        model = random_model(p, d, width)
        compiling, seconds, scores = twice(
            TieredEngine(model, DensitySettings(threads=threads)), made_up_rows(model, n_rows)
        )
        bridged = float((scores["method"] == "bridge").mean())
        sizes = {"rows": n_rows, "columns": p, "latents": d}
        yield {
            **sizes,
            "ms_per_row": 1000 * seconds / len(scores["method"]),
            "compiling": compiling,
            "bridged": bridged,
        }


GROWTH_COLUMNS = {
    **{name: f"{{{name}:>9,}}" for name in ("rows", "columns", "latents")},
    "CPU ms per row": "{ms_per_row:>16.2f}",
    "compiling, s": "{compiling:>14.1f}",
    "bridged": "{bridged:>9.1%}",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    parser = parser_of(__doc__ or "")
    parser.add_argument("runs", type=Path, nargs="*", help="runs with `refine` done")
    parser.add_argument("--rows", type=int, default=1000, help="test rows scored by auto")
    parser.add_argument(
        "--checked", type=int, default=200, help="of these, rows that are bridged, and have a reference"
    )
    parser.add_argument("--growth", nargs="+", choices=GROWTH, default=[], help="how cost grows, and with what")
    parser.add_argument("--alone", action="store_true", help="leave out the members of closed forms")
    parser.add_argument("--start", action="store_true", help="what two rows cost, cold and warm")
    parser.set_defaults(threads=1)
    options: argparse.Namespace = parser.parse_args(argv)
    load_tensorflow(threads=options.threads)
    found = []
    for run in options.runs:
        found.append(run_figures(run, options.rows, options.checked, options.threads, is_alone=options.alone))
        if options.start:
            found[-1]["start"] = start_figures(run)
        print_run(found[-1])
    grown = {name: print_cases(growth(name, options.threads), GROWTH_COLUMNS) for name in options.growth}
    write_json(options, ["rows", "checked", "alone", "threads"], runs=found, growth=grown)


if __name__ == "__main__":
    main()
