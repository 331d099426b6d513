"""What is asked of SLURM for the tasks of an array, checked before a script is written."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from bayesnde_cli.errors import BadUsage

# SLURM gives its signal so many seconds before the end, and up to a minute earlier: time to put the work away.
SIGNAL_SECONDS = 180
_LEAST_SECONDS = 600
# The spellings of a time in sbatch: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]].
_TIME = re.compile(
    r"(?:(?P<days>\d{1,4})-)?(?P<first>\d{1,6})(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?", re.ASCII
)
# What may stand in a line of sbatch's options without quotes.
_WORD = re.compile(r"[^\s'\"\\#]+")
_DIRECTIVE = "#SBATCH"


@dataclass(frozen=True)
class Request:
    """The resources of every task, and who pays for them."""

    shards: int = 8
    cpus_per_task: int = 4
    gpus_per_task: int = 0
    time: str = "02:00:00"
    partition: str | None = None
    account: str | None = None
    array_limit: int | None = None  # tasks at a time; None: as many as SLURM likes

    def __post_init__(self) -> None:
        least = {"shards": 1, "cpus_per_task": 1, "gpus_per_task": 0, "array_limit": 1}
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                option = f"--{name.replace('_', '-')}"
                raise BadUsage(f"{option} must be {minimum} at least", found=f"{option} {value}", hint="give a number")
        for name in ("partition", "account"):
            value = getattr(self, name)
            if value is not None and not _WORD.fullmatch(value):
                raise BadUsage(
                    f"--{name} is one word",
                    found=f"--{name} {value!r}",
                    hint="see the names with `sinfo` or `sacctmgr`",
                )
        if self.seconds < _LEAST_SECONDS:
            raise BadUsage(
                f"--time {self.time} is too short",
                found=f"a task is told to stop {SIGNAL_SECONDS} s before its time is over, and maybe a minute earlier",
                hint="give 10 minutes at least; a task that runs out of time goes back into the queue, and goes on",
            )

    @property
    def seconds(self) -> int:
        """The time limit of a task."""
        match = _TIME.fullmatch(self.time)
        if match is None:
            raise BadUsage(
                f"--time {self.time} is not a time",
                found="SLURM has no such spelling",
                hint="write HH:MM:SS, or minutes",
            )
        first, *rest = (int(match[name] or 0) for name in ("first", "second", "third"))
        if match["days"] is not None:
            days, hours, minutes, seconds = int(match["days"]), first, *rest
        elif match["third"] is not None:
            days, hours, minutes, seconds = 0, first, *rest
        else:
            days, hours, minutes, seconds = 0, 0, first, rest[0]
        return ((24 * days + hours) * 60 + minutes) * 60 + seconds


@dataclass(frozen=True)
class Setup:
    """The user's lines for the top of both scripts."""

    path: str
    directives: tuple[str, ...]  # lines for sbatch, which reads none after the first command
    text: str


def read_setup(path: Path) -> Setup:
    """A setup file; its first line may name a shell, as in a script."""
    try:
        lines = path.read_text("utf-8", "surrogateescape").splitlines()
    except OSError as error:
        raise BadUsage(
            f"the setup file {path} cannot be read",
            found=os.strerror(error.errno or 0),
            hint="give a file of shell commands, for instance `module load …`, with --setup",
        ) from None
    if lines and lines[0].startswith("#!"):
        lines.pop(0)
    directives = tuple(line.rstrip() for line in lines if line.startswith(_DIRECTIVE))
    text = "\n".join(line for line in lines if not line.startswith(_DIRECTIVE)).strip("\n")
    return Setup(os.path.abspath(path), directives, text)
