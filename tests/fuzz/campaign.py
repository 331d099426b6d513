"""The fuzz campaign: damaged files for every reader and every loader of a run's files, counted by what came of them.

    python tests/fuzz/campaign.py --cases 20000 --seed 1
    python tests/fuzz/campaign.py --cases 500 --seed 7 --only parquet --keep found

Cases are drawn by hypothesis: valid files with bytes, fields, members, columns or tokens changed, documents and tables
sealed again after the change, and files made of odd parts. Each target works in a process of its own: one that dies is
a crash, one that says nothing for half a minute a hang. Only our own errors are allowed. With `--keep` the content of
each case that was neither read nor refused is kept. The exit code is 1 if there is one.
"""

import argparse
import faulthandler
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "model")]

import fuzz_artifacts  # noqa: E402
import fuzz_readers  # noqa: E402
from fuzz_cases import (  # noqa: E402
    CRASH,
    HANG,
    OUTCOMES,
    READ,
    REFUSED,
    artifact_cases,
    make_run,
    outcome_of,
    reader_cases,
)
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import seed as seeded  # noqa: E402

HANG_SECONDS = 30
# Address space that a worker may take beyond what it has when it starts: an absurd request fails at once.
MORE_BYTES = 4 << 30
_BATCH = 500


def main() -> int:
    arguments = _arguments()
    names = [*fuzz_readers.TARGETS, *(target.name for target in fuzz_artifacts.TARGETS)]
    chosen = [name for name in names if arguments.only is None or arguments.only in name]
    n_each = -(-arguments.cases // len(chosen))
    started, counts = time.monotonic(), {}
    print(f"{'target':42}{'cases':>8}" + "".join(f"{outcome:>13}" for outcome in OUTCOMES), flush=True)
    with tempfile.TemporaryDirectory(prefix="bayesnde-fuzz-") as folder:
        _made_apart(Path(folder))
        for name in chosen:
            counts[name] = _fuzzed(name, n_each, arguments, Path(folder))
            _show(name, counts[name])
    total = sum(counts.values(), Counter())
    _show("all", total)
    print(f"{time.monotonic() - started:.0f} s, seed {arguments.seed}")
    return 0 if total.total() == total[READ] + total[REFUSED] else 1


def _made_apart(folder: Path) -> None:
    """The run whose files are damaged, made by a process of its own: the workers shall not inherit what it loads."""
    maker = multiprocessing.Process(target=_make, args=(folder,))
    maker.start()
    maker.join()
    if maker.exitcode:
        sys.exit("the run to damage could not be made")


def _make(folder: Path) -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    make_run(folder)


def _fuzzed(name: str, n_cases: int, arguments: argparse.Namespace, folder: Path) -> Counter:
    """The outcomes of a target; a worker that dies is counted, and another one goes on with the next batch."""
    counts: Counter = Counter()
    batch = 0
    while counts.total() < n_cases:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        size = min(_BATCH, n_cases - counts.total())
        worker = multiprocessing.Process(target=_work, args=(name, size, f"{arguments.seed} {batch}", folder, theirs))
        worker.start()
        theirs.close()
        _gather(ours, worker, counts, name, arguments.keep)
        batch += 1
    return counts


def _gather(ours: Connection, worker: multiprocessing.Process, counts: Counter, name: str, keep: Path | None) -> None:
    """Count what a worker says until it ends."""
    content = b""
    while True:
        try:
            if not ours.poll(HANG_SECONDS + 60 * (not content)):  # loading TensorFlow takes its time
                outcome, told = HANG, "no word"
                worker.kill()
            else:
                content = ours.recv_bytes()
                if not ours.poll(HANG_SECONDS):
                    outcome, told = HANG, "no word"
                    worker.kill()
                else:
                    outcome, told = json.loads(ours.recv_bytes())
        except EOFError:
            worker.join()
            if worker.exitcode == 0:
                return
            outcome, told = CRASH, f"the process ended with {worker.exitcode}"
        counts[outcome] += 1
        if outcome not in (READ, REFUSED):
            _keep(keep, name, content, outcome, told)
        if told in ("no word",) or told.startswith("the process ended"):
            worker.join()
            return


def _work(name: str, n_cases: int, address: str, made: Path, theirs: Connection) -> None:
    """Run so many cases of a target, and say of each its content and what came of it."""
    faulthandler.enable()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=made))
    shutil.copytree(made / "run", folder / "run")
    os.chdir(folder)
    case = (reader_cases if name in fuzz_readers.TARGETS else artifact_cases)(folder)[name]
    if "model.npz" in name:
        import tensorflow  # noqa: F401, before memory is limited
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MORE_BYTES, size + MORE_BYTES))
    number = int.from_bytes(hashlib.sha256(f"{address} {name}".encode()).digest()[:8], "big")

    @seeded(number)
    @settings(max_examples=n_cases, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case.contents)
    def run(content: bytes) -> None:
        theirs.send_bytes(content or b"\0")
        theirs.send_bytes(json.dumps(outcome_of(case, content)).encode())

    run()


def _keep(folder: Path | None, name: str, content: bytes, outcome: str, told: str) -> None:
    print(f"-- {name}: {outcome}\n{told}", file=sys.stderr)
    if folder is not None:
        folder.mkdir(exist_ok=True)
        digest = hashlib.sha256(content).hexdigest()[:12]
        (folder / f"{name.replace('/', '-').replace(' ', '-')}-{digest}").write_bytes(content)


def _show(name: str, counts: Counter) -> None:
    print(f"{name:42}{counts.total():>8}" + "".join(f"{counts[outcome]:>13}" for outcome in OUTCOMES), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000, help="in all, shared out evenly among the targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="TEXT", help="the targets whose names have this in them")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to put what was neither read nor refused")
    return parser.parse_args()


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    sys.exit(main())
