"""What is done to a process at work, and what it may do about it."""

import errno
import os
import random
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from file_operations import FREEING
from victims import Ended, WarmParent

from bayesnde_cli.artifacts.layout import claim_names

# Of kills and signals, this share comes at a step, the others at a time.
_AT_A_STEP = 0.7
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
# A full disk or quota, for good or for a moment; a disk that turned read-only, as after an error; a failing one.
_REFUSALS: tuple[dict[str, Any], ...] = (
    {"errno": errno.ENOSPC, "is_lasting": True, "spared": FREEING},
    {"errno": errno.EDQUOT},
    {"errno": errno.EROFS, "is_lasting": True},
    {"errno": errno.EACCES},
    {"errno": errno.EIO},
)
_STOPPED = "error: stopped by {}\n  nothing half-written was left behind\nhint: run the same command again to go on\n"
_REFUSED = re.compile(r"error: cannot write .+\n  {}\nhint: .+\n")


@dataclass(frozen=True)
class Disturbance:
    """A mishap at a step of a process, or a signal after some seconds, which may come twice."""

    kind: str
    mishap: dict[str, Any]
    seconds: float | None = None
    is_twice: bool = False

    def inflicted(self, parent: WarmParent, folder: Path, command: Sequence[str], **options: Any) -> Ended:
        """How a process ends to which it is done."""
        if self.seconds is None:
            return parent.run(folder, command, mishap=self.mishap, **options)
        victim = parent.start(folder, command, **options)
        time.sleep(self.seconds)
        for _ in range(1 + self.is_twice):
            victim.send(self.mishap["signal"])  # its id is its own until it is waited for
        return victim.wait()

    def has_hit(self, ended: Ended) -> bool:
        """Whether it was in time: the process may have been at its end before."""
        return ended.code != 0 or (self.seconds is None and len(ended.steps) >= self.mishap["at"])

    def complaint(self, ended: Ended, run: Path) -> str | None:
        """What is wrong with how a process ended and with what it left, if anything."""
        number = self.mishap.get("signal", 0)
        if self.kind == "kill":
            return _unless(ended.code in (0, -signal.SIGKILL), ended)
        if self.kind == "refusal":
            told = _REFUSED.pattern.format(re.escape(os.strerror(self.mishap["errno"])))
            return _unless(ended.code == 0 or (ended.code == 2 and re.search(told + r"\Z", ended.err)), ended)
        if self.is_twice and ended.code == -number:
            return None
        is_unheard = self.seconds is not None and ended.code == -number and not ended.err  # before it listened
        name = signal.Signals(number).name
        told_so = ended.code == 75 and ended.err.endswith(_STOPPED.format(name))
        left = [path.name for path in run.rglob(".*") if path.name.startswith(".tmp-") or claim_names([path.name])]
        return _unless(ended.code == 0 or told_so or is_unheard, ended) or (
            f"left behind: {', '.join(left)}" if left else None
        )


def kill(rng: random.Random, calm: Ended) -> Disturbance:
    """A SIGKILL before a step of an undisturbed run, or within its time."""
    return _at_random("kill", {"signal": signal.SIGKILL}, rng, calm)


def stop(rng: random.Random, calm: Ended) -> Disturbance:
    """A signal that asks to stop, at a step or a time."""
    return _at_random("signal", {"signal": rng.choice(_SIGNALS)}, rng, calm)


def refuse(rng: random.Random, calm: Ended) -> Disturbance:
    """A step that the system refuses."""
    return Disturbance("refusal", {**rng.choice(_REFUSALS), "at": rng.randint(1, len(calm.steps))})


KINDS = {"kill": kill, "signal": stop, "refusal": refuse}


def _at_random(kind: str, mishap: dict[str, Any], rng: random.Random, calm: Ended) -> Disturbance:
    if rng.random() < _AT_A_STEP:
        return Disturbance(kind, {**mishap, "at": rng.randint(1, len(calm.steps))})
    is_twice = mishap["signal"] == signal.SIGINT and rng.random() < 0.5
    return Disturbance(kind, mishap, seconds=rng.random() * calm.seconds, is_twice=is_twice)


def _unless(is_right: object, ended: Ended) -> str | None:
    return None if is_right else f"exit code {ended.code}: {ended.err[-400:]}"
