"""What it costs to share the rows of `density` among shards: processor time of one process against that of many.

    python benchmarks/sharding.py RUN
    python benchmarks/sharding.py RUN --rows 8192 --shards 8 --json sharding.json

New rows of a fitted run are scored by one process and, in a copy of the run, by shards one after the other and a gather
job. Each process has a start-up, which it owes whatever it computes: imports, the model, and compiling, which is what a
call of a compiled program took that traced it, less what later calls of the same shapes took. What is left is work, of
which shards should do no more than one process. `first result` is the time from the start of a process until its first
compiled program has given something back, and `compiled` until the last one had to be compiled. Both tables must be
equal to the byte.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# What a fitted run needs to score rows.
_STAGES = ("prepare", "warmstart", "refine")
_STARTED = "BAYESNDE_BENCHMARK_STARTED"


@dataclass
class Process:
    """What a process took: seconds since its start, and seconds of processor time."""

    wall: float
    cpu: float
    startup_cpu: float = 0.0
    compile_cpu: float = 0.0  # part of the start-up
    first_result: float = math.nan
    compiled: float = math.nan

    @property
    def work_cpu(self) -> float:
        return self.cpu - self.startup_cpu


# In the process that is measured.


@dataclass
class Programs:
    """The calls of compiled programs, by program and shapes: those that compiled, and the others."""

    started: float
    compiling: dict[Any, list[float]] = field(default_factory=lambda: defaultdict(list))
    running: dict[Any, list[float]] = field(default_factory=lambda: defaultdict(list))
    before_first: float = math.nan
    first_result: float = math.nan
    compiled: float = math.nan

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The call of a program, whose calls are told."""
        import tensorflow as tf

        def call(program: Any, *args: Any) -> Any:
            begun = time.process_time()
            self.before_first = begun if math.isnan(self.before_first) else self.before_first
            result = function(program, *args)
            key = id(program), tuple(str(leaf.shape) for leaf in tf.nest.flatten(args) if leaf is not None)
            is_new = key not in self.compiling
            (self.compiling if is_new else self.running)[key].append(time.process_time() - begun)
            now = time.time() - self.started
            self.first_result = now if math.isnan(self.first_result) else self.first_result
            self.compiled = now if is_new else self.compiled
            return result

        return call

    def compile_cpu(self) -> float:
        """Calls that compiled, less what such a call takes otherwise; if there was no other, less nothing."""
        return sum(
            sum(times) - len(times) * (statistics.median(self.running[key]) if self.running.get(key) else 0.0)
            for key, times in list(self.compiling.items())
        )


def _measured(arguments: Sequence[str], log: Path) -> int:
    """Run a command line in this process, and write down what it took."""
    from bayesnde_cli.cli.main import run

    programs = Programs(float(os.environ[_STARTED]))
    import bayesnde_cli.model.backend as backend

    load_tensorflow = backend.load_tensorflow

    def loaded(**options: Any) -> Any:
        answer = load_tensorflow(**options)
        from bayesnde_cli.inference.fitted_model import Program

        Program.__call__ = programs.watched(Program.__call__)  # type: ignore[method-assign]
        return answer

    backend.load_tensorflow = loaded  # type: ignore[assignment]
    code = run(list(arguments))
    cpu, compile_cpu = time.process_time(), programs.compile_cpu()
    before = cpu if math.isnan(programs.before_first) else programs.before_first
    taken = Process(
        wall=time.time() - programs.started, cpu=cpu, startup_cpu=before + compile_cpu, compile_cpu=compile_cpu,
        first_result=programs.first_result, compiled=programs.compiled,
    )  # fmt: skip
    log.write_text(json.dumps(asdict(taken)))
    return code


# In the process that measures.


def _run(run: Path, data: Path, *options: str) -> Process:
    """`density` in a process of its own."""
    log = run.with_name("log.json")
    command = [sys.executable, __file__, "--measured", str(log), "density", str(data), "--run", str(run), "-q"]
    subprocess.run(
        [*command, *options], check=True, stdout=subprocess.DEVNULL, env=os.environ | {_STARTED: str(time.time())}
    )
    return Process(**json.loads(log.read_text()))


def _copied(run: Path, place: Path) -> Path:
    for stage in _STAGES:
        shutil.copytree(run / stage, place / stage)
    return place


def measure(run: Path, n_rows: int, n_shards: int, options: Sequence[str]) -> dict[str, Any]:
    """The figures of one process and of shards on the same new rows."""
    with tempfile.TemporaryDirectory(prefix="bayesnde-sharding-") as folder:
        data = Path(folder, "rows.csv")
        sample = [sys.executable, "-m", "bayesnde_cli", "sample", str(n_rows), "--run", str(run), "--out", str(data)]
        subprocess.run([*sample, "--seed", "1", "-q"], check=True)
        alone, shared = _copied(run, Path(folder, "alone")), _copied(run, Path(folder, "shared"))
        one = _run(alone, data, *options)
        shards = []
        for index in range(1, n_shards + 1):
            shards.append(_run(shared, data, *options, "--shard", f"{index}/{n_shards}"))
            print(f"shard {index}/{n_shards}: {_line(shards[-1])}", file=sys.stderr)
        gather = _run(shared, data, *options)
        tables = [next(place.glob("density/*/density.parquet")).read_bytes() for place in (alone, shared)]
    work = sum(process.work_cpu for process in shards)
    return {
        "n_rows": n_rows,
        "n_shards": n_shards,
        "one": asdict(one),
        "shards": [asdict(process) for process in shards],
        "gather": asdict(gather),
        "work_ratio": (work + gather.cpu) / one.work_cpu,
        "total_ratio": (sum(process.cpu for process in shards) + gather.cpu) / one.cpu,
        "first_result": max(process.first_result for process in shards),
        "compiled": max(process.compiled for process in shards),
        "are_equal": tables[0] == tables[1],
    }


def _line(process: Process) -> str:
    return (
        f"{process.cpu:.1f} s of CPU, start-up {process.startup_cpu:.1f} of it (compiling {process.compile_cpu:.1f}); "
        f"first result after {process.first_result:.1f} s, compiled after {process.compiled:.1f} s"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a fitted run")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--json", type=Path)
    asked, options = parser.parse_known_args(arguments)
    found = measure(asked.run, asked.rows, asked.shards, options)
    shards = [Process(**process) for process in found["shards"]]
    startup = statistics.mean(process.startup_cpu for process in shards)
    print(f"rows: {asked.rows:,}, shards: {asked.shards}")
    print(f"one process: {_line(Process(**found['one']))}")
    print(f"a shard, mean: start-up {startup:.1f} s of CPU; work {statistics.mean(p.work_cpu for p in shards):.1f}")
    print(f"work of shards and gather / work of one process: {found['work_ratio']:.3f}")
    print(f"all of shards and gather / all of one process:   {found['total_ratio']:.3f}")
    print(f"slowest shard: first result after {found['first_result']:.1f} s, compiled after {found['compiled']:.1f} s")
    print(f"tables are {'equal' if found['are_equal'] else 'NOT EQUAL'}")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measured"]:
        sys.exit(_measured(sys.argv[3:], Path(sys.argv[2])))
    main()
