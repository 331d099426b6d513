"""Rows per CPU second by method of scoring, and how wrong and how honest the scores of a fitted run are.

    python benchmarks/methods.py RUN --rows 256 --bridged 64 --threads 1

Test rows of the run are scored by `--method auto` and some of them by `--method bridge`, each twice: the first time
compiles. Times are of the second time. The reference is a bridge of four times the default's draws.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayesnde_cli.inference.bridge import METHODS
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import DensitySettings
from bayesnde_cli.stages import loading
from bayesnde_cli.tables.model_rows import read_split

REFERENCE: dict[str, Any] = {"warm_up": 400, "draws": 400, "proposal_draws": 40_000, "escalations": 0}


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """User and system time of all threads, and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def scored(layout: RunLayout, settings: DensitySettings, rows: Rows) -> tuple[float, float, dict[str, np.ndarray]]:
    """CPU seconds of the first time, of the second time, and its figures."""
    engine = loading.open_engine(layout, settings).engine
    first, _ = cpu_seconds(lambda: engine.estimate(rows, 1))
    second, scores = cpu_seconds(lambda: engine.estimate(rows, 2))
    return first, second, scores


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run with `refine` done")
    parser.add_argument("--rows", type=int, default=256, help="test rows scored by auto")
    parser.add_argument("--bridged", type=int, default=64, help="of these, rows that are bridged, and have a reference")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    layout, auto = RunLayout(options.run), DensitySettings(seed=0, threads=options.threads)
    rows = read_split(layout, "test")
    rows = rows.take(np.arange(min(options.rows, len(rows))))
    some = rows.take(np.arange(min(options.bridged, len(rows))))
    bridge = auto.model_copy(update={"method": "bridge"})
    first, seconds, scores = scored(layout, auto, rows)
    bridge_first, bridge_seconds, _ = scored(layout, bridge, some)
    reference = loading.open_engine(layout, bridge.model_copy(update=REFERENCE)).engine.estimate(some, 3)
    n, rate, bridge_rate = len(some), len(rows) / seconds, len(some) / bridge_seconds
    print(f"{options.run}: {len(rows)} rows, {rows.x.shape[1]} columns, {options.threads} thread(s)")
    print(
        f"auto:   {rate:8.1f} rows per CPU second, {3600 * rate:,.0f} per hour; first time {first - seconds:.1f} s more"
    )
    print(f"bridge: {bridge_rate:8.1f} rows per CPU second; first time {bridge_first - bridge_seconds:.1f} s more")
    print(f"ratio:  {rate / bridge_rate:8.1f}")
    counts = Counter(scores["method"].tolist())
    print(f"{'method':<12}{'share':>7}{'rows':>6}{'median |error|':>16}{'largest':>9}{'covered':>9}{'mean error':>12}")
    for method in (*METHODS, "all"):
        is_own = (scores["method"][:n] == method) | (method == "all")
        share = (counts[method] if method != "all" else len(rows)) / len(rows)
        line = f"{method:<12}{share:>7.1%}{is_own.sum():>6}"
        if is_own.any():
            error = scores["log_density_scaled"][:n][is_own] - reference["log_density_scaled"][is_own]
            se = np.hypot(scores["mc_se"][:n], reference["mc_se"])[is_own]
            size = np.abs(error)
            line += f"{np.median(size):>16.4f}{size.max():>9.4f}{np.mean(size < 1.96 * se):>9.1%}{error.mean():>12.4f}"
        print(line)


if __name__ == "__main__":
    main()
