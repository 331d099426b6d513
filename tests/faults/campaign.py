"""Disturbances by the hundred: every stage is killed, stopped and refused its writes, and run again until it is done.

    python tests/faults/campaign.py                              # 100 kills, 50 signals, 50 refusals
    python tests/faults/campaign.py --kills 1000 --signals 300 --refusals 300 --seed 2
    python tests/faults/campaign.py --only density --every-step

A kill is a SIGKILL, just before the k-th step that the process takes on its files (a file opened, flushed, renamed,
removed; a piece of Parquet written) or after a part of the time that an undisturbed run takes. A signal is a SIGTERM,
SIGUSR1, SIGINT (once or twice) or SIGHUP: exit code 75, its message, and nothing left behind. A refusal is an error of
the system at a step (disk full, quota, read-only, no permission, input/output error), once or from there on: exit code
2 and its message. Afterwards no file of a stage that counts as done may be missing or changed. In the end every file
must be that of an undisturbed run, byte for byte, but for what `scenes.py` names.

Steps and times are drawn from the seed; where a signal by time hits depends on the machine. Exit code 1 if anything is
wrong. Engine, fitted model and compiled rounds are stand-ins; `--compiled` does without them, and compiles each time.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from disturbances import KINDS, Disturbance
from scenes import SCENES, Scene, Theatre, differing, files_of, rows_of
from victims import STAND_INS, WarmParent

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.stages.status import State, run_status

_MOST_OF_A_RUN = 4
_UNSOUND = (State.DAMAGED, State.RUNNING)
_SHOWN = 20


@dataclass
class Figures:
    """What a campaign found."""

    seed: int
    hits: dict[str, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in KINDS})  # by stage
    n_at_a_step: int = 0
    n_runs: int = 0  # disturbed, and brought to their end
    n_files: int = 0  # compared with those of undisturbed runs
    n_rows: int = 0
    differing_files: list[str] = field(default_factory=list)
    lost_rows: int = 0
    complaints: list[str] = field(default_factory=list)  # wrong exit codes and messages, things left behind
    seconds: float = 0.0

    def n_hits(self, kind: str) -> int:
        return self.hits[kind].total()

    @property
    def is_sound(self) -> bool:
        return not (self.differing_files or self.lost_rows or self.complaints)

    def __str__(self) -> str:
        kinds = [
            f"{kind}s: {counts.total()} ({', '.join(f'{stage} {n}' for stage, n in sorted(counts.items()))})"
            for kind, counts in self.hits.items()
            if counts
        ]
        n_all = sum(map(self.n_hits, self.hits))
        lines = [
            *kinds,
            f"{self.n_at_a_step} of {n_all} at a step, in {self.n_runs} runs, seed {self.seed}, {self.seconds:.0f} s",
            f"differing files: {len(self.differing_files)} of {self.n_files:,}",
            f"lost rows: {self.lost_rows} of {self.n_rows:,}",
            f"wrong ends: {len(self.complaints)}",
            *self.differing_files[:_SHOWN],
            *self.complaints[:_SHOWN],
        ]
        return "\n".join(lines)


class Campaign:
    """Disturbances of scenes, by a seed."""

    def __init__(self, theatre: Theatre, seed: int) -> None:
        self._theatre, self._rng = theatre, random.Random(seed)
        self.figures = Figures(seed)

    def disturb(self, scene: Scene, kind: str, most: int) -> None:
        """A run of the scene with a few disturbances of a kind; those that come after its end are in vain."""
        calm = self._theatre.calm_end(scene)
        number = min(most, self._rng.randint(1, _MOST_OF_A_RUN))
        self._run(scene, [KINDS[kind](self._rng, calm) for _ in range(number)])

    def kill_before(self, scene: Scene, step: int) -> None:
        """A run of the scene with a kill before the step at this position."""
        self._run(scene, [Disturbance("kill", {"at": step + 1, "signal": signal.SIGKILL})])

    def _run(self, scene: Scene, disturbances: Sequence[Disturbance]) -> None:
        figures, theatre = self.figures, self._theatre
        folder, command = theatre.folder / f"stormy {figures.n_runs}", theatre.command(scene)
        theatre.set_stage(scene, folder)
        figures.n_runs += 1
        wrong: list[str | None] = []
        for disturbance in disturbances:
            ended = disturbance.inflicted(theatre.parent, folder, command, stand_ins=theatre.stand_ins)
            if disturbance.has_hit(ended):
                figures.hits[disturbance.kind][scene.stage] += 1
                figures.n_at_a_step += disturbance.seconds is None
            wrong += [disturbance.complaint(ended, folder / "run"), *_unsound(folder / "run")]
        ended = theatre.parent.run(folder, command, stand_ins=theatre.stand_ins)
        wrong.append(None if ended.code == 0 else f"in the end exit code {ended.code}: {ended.err[-400:]}")
        what = f"{scene.name}, {list(map(asdict, disturbances))}"
        figures.complaints += [f"{what}: {line}" for line in wrong if line]
        self._compare(scene, folder / "run", what)
        shutil.rmtree(folder)

    def _compare(self, scene: Scene, run: Path, what: str) -> None:
        figures, expected, rows = self.figures, self._theatre.calm_files(scene), self._theatre.calm_rows(scene)
        found, found_rows = files_of(run), rows_of(run)
        figures.n_files += len(expected)
        figures.n_rows += sum(map(len, rows.values()))
        figures.differing_files += [f"{what}: {name}" for name in differing(found, expected)]
        figures.lost_rows += sum(len(rows[name] - found_rows.get(name, set())) for name in rows)


def _unsound(run: Path) -> list[str]:
    """Stages that are damaged, every file read, or that seem to be at work although nobody is."""
    found = run_status(RunLayout(run), [], is_verifying=True)
    return [f"{item.stage} is {item.state}: {item.detail}" for item in found.stages if item.state in _UNSOUND]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, default in (("kill", 100), ("signal", 50), ("refusal", 50)):
        parser.add_argument(f"--{kind}s", type=int, default=default, help=f"how many, at least ({default})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=SCENES, metavar="SCENE", help=f"of: {', '.join(SCENES)}")
    parser.add_argument("--every-step", action="store_true", help="a kill at each step of each scene, and no more")
    parser.add_argument("--compiled", action="store_true", help="real engine, model and training")
    parser.add_argument("--json", action="store_true", help="the figures for machines")
    asked = parser.parse_args(arguments)
    scenes = [SCENES[name] for name in asked.only or SCENES]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bayesnde-faults-") as folder, WarmParent() as parent:
        theatre = Theatre(Path(folder), parent, {} if asked.compiled else STAND_INS)
        campaign = Campaign(theatre, asked.seed)
        if asked.every_step:
            for scene in scenes:
                for step in range(len(theatre.calm_end(scene).steps)):
                    campaign.kill_before(scene, step)
        else:
            _disturb(campaign, scenes, {kind: getattr(asked, f"{kind}s") for kind in KINDS})
    figures = campaign.figures
    figures.seconds = time.monotonic() - started
    document = asdict(figures) | {"hits": {kind: dict(counts) for kind, counts in figures.hits.items()}}
    print(json.dumps(document, indent=2) if asked.json else figures)
    return 0 if figures.is_sound else 1


def _disturb(campaign: Campaign, scenes: Sequence[Scene], wanted: dict[str, int]) -> None:
    """So many disturbances of each kind, scene after scene."""
    for kind, number in wanted.items():
        while (n_left := number - campaign.figures.n_hits(kind)) > 0:
            for scene in scenes:
                if (n_left := number - campaign.figures.n_hits(kind)) > 0:
                    campaign.disturb(scene, kind, n_left)


if __name__ == "__main__":
    sys.exit(main())
