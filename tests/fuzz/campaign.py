"""The fuzz campaign: damaged files for every reader and every loader of a run's files, counted by what came of them.

    python tests/fuzz/campaign.py                                              # 20,000 cases
    python tests/fuzz/campaign.py --cases 500 --seed 7 --only parquet --keep found
    python tests/fuzz/campaign.py --control                                    # readers broken on purpose: exit code 1

Cases are drawn by hypothesis: valid files with bytes, fields, members, columns or tokens changed, documents and tables
sealed again after the change, and files made of odd parts. A file must be read, or refused with an error of our own. A
traceback is any other error, and any warning; a crash, a process that dies; a hang, one that says nothing for half a
minute; over memory, one that takes 300 MiB for a file of a few kilobytes. The exit code is 1 if there is one of these.
"""

import argparse
import hashlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "model")]

import fuzz_controls  # noqa: E402
from fuzz_cases import OUTCOMES, READ, REFUSED, case_of, make_run, target_names  # noqa: E402
from fuzz_workers import Found, Work, found_by_workers, use_fork  # noqa: E402


def main() -> int:
    arguments = _arguments()
    names = [*fuzz_controls.READERS] if arguments.control else target_names()
    chosen = [name for name in names if arguments.only is None or arguments.only in name]
    if not chosen:
        sys.exit(f"no target has '{arguments.only}' in its name; there are: {', '.join(names)}")
    make = fuzz_controls.case_of if arguments.control else case_of
    n_each = -(-arguments.cases // len(chosen))
    started, counts = time.monotonic(), {}
    print(f"{'target':42}{'cases':>8}" + "".join(f"{outcome:>13}" for outcome in OUTCOMES), flush=True)
    with tempfile.TemporaryDirectory(prefix="bayesnde-fuzz-") as folder:
        if not arguments.control:
            _made_apart(Path(folder))
        for name in chosen:
            counts[name] = Counter()
            work = Work(name, partial(make, name), n_each, arguments.seed, arguments.hang_seconds)
            for found in found_by_workers(work, Path(folder)):
                counts[name][found.outcome] += 1
                if found.outcome not in (READ, REFUSED):
                    _tell(name, found, arguments.keep)
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
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    make_run(folder)


def _tell(name: str, found: Found, keep: Path | None) -> None:
    print(f"-- {name}: {found.outcome}\n{found.told}", file=sys.stderr)
    if keep is not None:
        keep.mkdir(exist_ok=True)
        digest = hashlib.sha256(found.content).hexdigest()[:12]
        (keep / f"{name.replace('/', '-').replace(' ', '-')}-{digest}").write_bytes(found.content)


def _show(name: str, counts: Counter) -> None:
    print(f"{name:42}{counts.total():>8}" + "".join(f"{counts[outcome]:>13}" for outcome in OUTCOMES), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000, help="in all, shared out evenly among the targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="TEXT", help="the targets whose names have this in them")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to put what was neither read nor refused")
    parser.add_argument("--hang-seconds", type=float, default=30, help="how long a case may take")
    parser.add_argument("--control", action="store_true", help="readers that are broken on purpose, instead of ours")
    return parser.parse_args()


if __name__ == "__main__":
    use_fork()
    sys.exit(main())
