"""What `slurm` leaves: two scripts, how to send them or that they were sent, and how long they will take."""

from dataclasses import asdict, dataclass
from typing import Any

from bayesnde_cli.stages.reporting import counted
from bayesnde_cli.stages.slurm.command_lines import array_of


@dataclass(frozen=True)
class NothingToDo:
    """The data set is scored, or all that is missing is in the queue."""

    set_name: str
    text: str

    def as_dict(self) -> dict[str, Any]:
        return {"set_name": self.set_name, "tasks": [], "array_job": None, "gather_job": None}

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ArrayWritten:
    """The jobs of a data set. `tasks` are the shards that are missing and not in the queue."""

    set_name: str
    array: str
    gather: str
    shards: int
    tasks: tuple[int, ...]
    n_rows: int
    n_blocks: int
    blocks_done: int
    commands: tuple[str, ...]  # what to type; none if it was done
    array_job: str | None = None
    gather_job: str | None = None
    rows_per_second: float | None = None  # of one task
    seconds: float | None = None  # of the whole array, from its first task's start

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        what = f"{counted(self.n_rows, 'row')}, {counted(self.n_blocks, 'block')} in {counted(self.shards, 'shard')}"
        if self.blocks_done:
            what += f", {self.blocks_done:,} blocks done, missing {array_of(self.tasks) or 'none'}"
        lines = [f"{self.array}: {what}", f"{self.gather}: puts them together"]
        if self.array_job:
            lines.append(f"submitted: array {self.array_job}")
        if self.gather_job:
            after = f", after array {self.array_job}" if self.array_job else ""
            lines.append(f"submitted: gather {self.gather_job}{after}")
        if self.commands:
            lines += ["to send them, type", *(f"  {command}" for command in self.commands)]
        return "\n".join(lines)
