"""Disturbances by the hundred: every stage is killed, stopped and refused its writes, and run again until it is done.

    python tests/faults/campaign.py                              # 100 kills, 50 signals, 50 refusals
    python tests/faults/campaign.py --kills 1000 --signals 300 --refusals 300 --seed 2
    python tests/faults/campaign.py --only density --every-step

A kill is a SIGKILL just before a step that the process takes on its files (a file opened, flushed, renamed, removed; a
piece of Parquet written). A signal is a SIGTERM, SIGUSR1, SIGINT or SIGHUP at a step: exit code 75, its message, and
nothing left behind. A refusal is an error of the system at a step, once or from there on: exit code 2 and its message.
Afterwards no file of a stage that counts as done may be missing or changed. In the end every file must be that of an
undisturbed run, byte for byte, except for what `scenes.py` names. Steps are drawn from the seed. Exit code 1 if
anything is wrong. Engine, fitted model and compiled rounds are replaced by fast ones.
"""

import argparse
import errno
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from file_operations import FREEING
from scenes import SCENES, Scene, Theatre, differing, files_of
from victims import Ended, WarmParent

from bayesnde_cli.runs.layout import RunLayout, is_claim
from bayesnde_cli.stages.status import State, run_status

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
# A full disk or quota, for good or for a moment; a disk that turned read-only, as after an error; a failing one.
_REFUSALS: tuple[dict[str, Any], ...] = (
    {"errno": errno.ENOSPC, "is_lasting": True, "spared": FREEING},
    {"errno": errno.EDQUOT},
    {"errno": errno.EROFS, "is_lasting": True},
    {"errno": errno.EACCES},
    {"errno": errno.EIO},
)
KINDS = ("kill", "signal", "refusal")
_STOPPED = "error: stopped by {}\n  nothing half-written was left behind\nhint: run the same command again to resume\n"
_MOST_OF_A_RUN = 3


class Campaign:
    """Disturbances of scenes, by a seed, and what they found."""

    def __init__(self, theatre: Theatre, seed: int) -> None:
        self._theatre, self._rng = theatre, random.Random(seed)
        self.hits: Counter[str] = Counter()  # by kind
        self.n_files = 0  # compared with those of undisturbed runs
        self.complaints: list[str] = []  # wrong exit codes, messages and files; things left behind

    def disturb(self, scenes: Sequence[Scene], wanted: dict[str, int]) -> None:
        """Inflict a number of disturbances of each kind, scene after scene, up to three in a run."""
        for kind, number in wanted.items():
            while self.hits[kind] < number:
                for scene in scenes:
                    n_steps = len(self._theatre.calm_end(scene).steps)
                    most = min(number - self.hits[kind], self._rng.randint(1, _MOST_OF_A_RUN))
                    self.run(scene, [self._draw(kind) | {"at": self._rng.randint(1, n_steps)} for _ in range(most)])

    def _draw(self, kind: str) -> dict[str, Any]:
        if kind == "refusal":
            return self._rng.choice(_REFUSALS)
        return {"signal": int(signal.SIGKILL if kind == "kill" else self._rng.choice(_SIGNALS))}

    def run(self, scene: Scene, mishaps: Sequence[dict[str, Any]]) -> None:
        """Run a scene once with each mishap and once without, and compare its files with those of a calm run."""
        if not mishaps:
            return
        theatre, wrong = self._theatre, []
        folder, command = theatre.folder / "stormy", theatre.command(scene)
        theatre.set_stage(scene, folder)
        for mishap in mishaps:
            ended = theatre.parent.run(folder, command, mishap=mishap, stand_ins=theatre.stand_ins)
            kind = "refusal" if "errno" in mishap else "kill" if mishap["signal"] == signal.SIGKILL else "signal"
            has_hit = ended.code != 0 or len(ended.steps) >= mishap["at"]  # it may have been at its end before
            self.hits[kind] += has_hit
            wrong += [_complaint(kind, mishap, ended, folder / "run"), *_unsound(folder / "run")]
        ended = theatre.parent.run(folder, command, stand_ins=theatre.stand_ins)
        wrong.append(None if ended.code == 0 else f"in the end exit code {ended.code}: {ended.err[-400:]}")
        expected = theatre.calm_files(scene)
        wrong += [f"differs: {name}" for name in differing(files_of(folder / "run"), expected)]
        self.n_files += len(expected)
        self.complaints += [f"{scene.name}, {mishaps}: {line}" for line in wrong if line]
        shutil.rmtree(folder)


def _complaint(kind: str, mishap: dict[str, Any], ended: Ended, run: Path) -> str | None:
    """What is wrong with how a process ended and with what it left, if anything."""
    if kind == "kill":
        is_right = ended.code in (0, -signal.SIGKILL)
    elif kind == "refusal":
        told = rf"error: cannot write .+\n  {re.escape(os.strerror(mishap['errno']))}\nhint: .+\n\Z"
        is_right = ended.code == 0 or (ended.code == 2 and re.search(told, ended.err) is not None)
    else:
        name = signal.Signals(mishap["signal"]).name
        is_right = ended.code == 0 or (ended.code == 75 and ended.err.endswith(_STOPPED.format(name)))
        left = [path.name for path in run.rglob(".*") if path.name.startswith(".tmp-") or is_claim(path.name)]
        if left:
            return f"left behind: {', '.join(left)}"
    return None if is_right else f"exit code {ended.code}: {ended.err[-400:]}"


def _unsound(run: Path) -> list[str]:
    """Stages that are damaged, every file read, or that seem to be at work although nobody is."""
    found = run_status(RunLayout(run), is_verifying=True).stages
    return [f"{one.stage} is {one.state}: {one.detail}" for one in found if one.state in (State.DAMAGED, State.RUNNING)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, default in zip(KINDS, (100, 50, 50), strict=True):
        parser.add_argument(f"--{kind}s", type=int, default=default, help=f"how many, at least ({default})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=SCENES, metavar="SCENE", help=f"of: {', '.join(SCENES)}")
    parser.add_argument("--every-step", action="store_true", help="a kill at each step of each scene, and no more")
    asked = parser.parse_args()
    scenes = [SCENES[name] for name in asked.only or SCENES]
    with tempfile.TemporaryDirectory(prefix="bayesnde-faults-") as folder, WarmParent() as parent:
        theatre = Theatre(Path(folder), parent)
        campaign = Campaign(theatre, asked.seed)
        if asked.every_step:
            for scene in scenes:
                for step in range(len(theatre.calm_end(scene).steps)):
                    campaign.run(scene, [{"at": step + 1, "signal": int(signal.SIGKILL)}])
        else:
            campaign.disturb(scenes, {kind: getattr(asked, f"{kind}s") for kind in KINDS})
    print(dict(campaign.hits), f"{campaign.n_files:,} files compared, {len(campaign.complaints)} wrong", sep="\n")
    print(*campaign.complaints[:20], sep="\n")
    return 1 if campaign.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
