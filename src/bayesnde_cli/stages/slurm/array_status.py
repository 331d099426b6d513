"""The arrays of a run, for `status`: shards that are missing, what SLURM knows of them, the line that submits them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bayesnde_cli.artifacts import array_record
from bayesnde_cli.artifacts.array_record import ArrayRecord
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.errors import BayesndeError
from bayesnde_cli.stages.slurm.command_lines import array_line, array_of, gather_line
from bayesnde_cli.stages.slurm.queue import Queue, look_at_queue


@dataclass(frozen=True)
class ArrayStatus:
    """The shards of a data set that is not complete, by number."""

    set_name: str
    missing: tuple[int, ...]
    running: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    is_gathering: bool = False  # the gather job is in the queue
    commands: tuple[str, ...] = ()  # that submit what is missing and not in the queue
    problem: str | None = None  # why nothing is known of the queue, or of the array

    @property
    def is_queued(self) -> bool:
        """SLURM has it in its queue, and nothing is to be submitted."""
        return bool(self.running or self.pending or self.is_gathering) and not self.commands

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        tasks = {"missing": self.missing, "running": self.running, "pending": self.pending}
        parts = [f"{what} {array_of(numbers)}" for what, numbers in tasks.items() if numbers]
        parts += ["gather job in the queue"] if self.is_gathering else []
        parts += [self.problem] if self.problem else []
        lines = [f"array of density/{self.set_name}: {'; '.join(parts) or 'all shards done'}"]
        if self.commands:
            lines += ["  to go on:", *(f"    {command}" for command in self.commands)]
        return "\n".join(lines)


def array_statuses(layout: RunLayout, missing: Mapping[str, Sequence[int]]) -> list[ArrayStatus]:
    """Those of the data sets, with the shards that they miss, that an array was written for; one look at the queue."""
    found: list[ArrayStatus] = []
    records: dict[str, ArrayRecord] = {}
    for set_name in missing:
        again = layout.command("slurm", set_name)
        try:
            record = array_record.read(layout, set_name)
        except BayesndeError as error:
            found.append(ArrayStatus(set_name, (), commands=(again,), problem=error.what))
            continue
        if record is not None and not record.is_of(layout):  # moved or copied: its scripts would work elsewhere
            problem = f"its scripts are for {record.run}"
            found.append(ArrayStatus(set_name, tuple(missing[set_name]), commands=(again,), problem=problem))
        elif record is not None:
            records[set_name] = record
    if records:
        queue = look_at_queue(name for record in records.values() for name in (record.job_name, record.gather_name))
        found += [_status(layout, name, record, missing[name], queue) for name, record in records.items()]
    return found


def _status(layout: RunLayout, set_name: str, record: ArrayRecord, missing: Sequence[int], queue: Queue) -> ArrayStatus:
    running, pending = queue.tasks_of(record.job_name)
    is_gathering = queue.has(record.gather_name)
    left = sorted({*missing} - {*running, *pending})
    commands = []
    if left:
        commands.append(array_line(layout, set_name, array_of(left, record.array_limit)))
        commands += [] if is_gathering else [gather_line(layout, set_name)]
    return ArrayStatus(set_name, tuple(missing), running, pending, is_gathering, tuple(commands), queue.problem)
