"""Shared by the benchmarks: clocks, the peak of this machine's matrix products, tables line by line, JSON."""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

N_REPETITIONS = 3


class Clocks(NamedTuple):
    """Seconds, or GFLOP per second, by the wall clock and by the CPU time of all threads of this process."""

    wall: float
    cpu: float


def repetitions(call: Callable[[], object], seconds: float) -> list[Clocks]:
    """Clocks of a call, each a mean over a third of the seconds, or over one call if that takes longer."""
    timings = []
    for _ in range(N_REPETITIONS):
        wall, cpu, n_calls = time.perf_counter(), time.process_time(), 0
        while n_calls == 0 or time.perf_counter() - wall < seconds / N_REPETITIONS:
            call()
            n_calls += 1
        timings.append(Clocks((time.perf_counter() - wall) / n_calls, (time.process_time() - cpu) / n_calls))
    return timings


def fastest(call: Callable[[], object], seconds: float, n_units: int) -> Clocks:
    """Clocks of one of the units of a call, in the repetition that took least CPU time."""
    wall, cpu = min(repetitions(call, seconds), key=lambda clocks: clocks.cpu)
    return Clocks(wall / n_units, cpu / n_units)


# Rows, width and number of the products that are tried for the peak.
PRODUCTS = ((2048, 2048, 1), (2048, 256, 8), (256, 256, 16))


class Peak:
    """GFLOP per second of the fastest float32 product: large and layer-sized, compiled by XLA and plain.

    It is measured before and after every case, as other programs on the machine come and go; the better one counts.
    """

    def __init__(self, tf: Any, seconds: float) -> None:
        def chain(h: Any, weight: Any, *, n_products: int) -> Any:
            for _ in range(n_products):
                h = tf.matmul(h, weight)
            return h

        self._seconds = seconds
        self._products = []
        for n_rows, width, n_products in PRODUCTS:
            plain = partial(chain, n_products=n_products)
            h, weight = tf.random.normal([n_rows, width]), tf.random.normal([width, width]) / width**0.5
            for function in (plain, tf.function(plain, jit_compile=True, autograph=False)):
                function(h, weight)
                gflop = 2 * n_rows * n_products * width**2 / 1e9
                self._products.append((gflop, partial(function, h, weight)))
        self._last = self._measure()

    def _measure(self) -> Clocks:
        timed = [(gflop, timing) for gflop, call in self._products for timing in repetitions(call, self._seconds)]
        return Clocks(max(gflop / timing.wall for gflop, timing in timed), max(gflop / t.cpu for gflop, t in timed))

    def figures(self, gflop: float, clocks: Clocks) -> dict[str, float]:
        """Speed of a case that was just timed, and its share of the peak."""
        before, self._last = self._last, self._measure()
        top = Clocks(*map(max, before, self._last))
        return {
            "gflop_per_second": gflop / clocks.wall,
            "gflop_per_cpu_second": gflop / clocks.cpu,
            "peak_gflop_per_second": top.wall,
            "peak_gflop_per_cpu_second": top.cpu,
            "peak_share": gflop / clocks.wall / top.wall,
            "peak_share_cpu": gflop / clocks.cpu / top.cpu,
        }


def parser_of(description: str, *, seconds: float | None = None) -> argparse.ArgumentParser:
    """A parser with the options that all timings have; `--seconds` where cases are repeated."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="timing of each case")
    parser.add_argument("--threads", type=int, help="of TensorFlow; without it, all cores")
    return parser


# Heading and format of a column: "{name:>9.2f}" shows a figure of the case.
Columns = Mapping[str, str]

PEAK_COLUMNS = {
    "GFLOP/s": "{gflop_per_second:>9.0f}",
    "peak": "{peak_gflop_per_second:>6.0f}",
    "of peak": "{peak_share:>9.0%}",
    "of peak, CPU": "{peak_share_cpu:>14.0%}",
}


def print_cases(cases: Iterable[dict[str, Any]], columns: Columns) -> list[dict[str, Any]]:
    """The cases, each printed as a line of a table when it is measured."""
    found = []
    for case in cases:
        cells = [form.format(**case) for form in columns.values()]
        if not found:
            print("".join(_fit(heading, cell) for heading, cell in zip(columns, cells, strict=True)))
        print("".join(cells), flush=True)
        found.append(case)
    return found


def _fit(heading: str, cell: str) -> str:
    return heading.ljust(len(cell)) if not cell.startswith(" ") else heading.rjust(len(cell))


def write_json(options: argparse.Namespace, names: Sequence[str], **figures: Any) -> None:
    """Write figures and the options of these names, if `--json` asks for them."""
    if options.json:
        settings = {name: getattr(options, name) for name in names}
        options.json.write_text(json.dumps({**settings, **figures}, indent=2) + "\n", "utf-8")
