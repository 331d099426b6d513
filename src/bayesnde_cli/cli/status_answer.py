"""The answer of `bayesnde status`, and the forms of the question that need no option parser."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.config.stages import STAGE_CONFIGS
from bayesnde_cli.stages.reporting import aligned, duration

if TYPE_CHECKING:
    from bayesnde_cli.stages.status import StageStatus


@dataclass(frozen=True)
class StatusQuestion:
    """What `bayesnde status` was asked."""

    run: str | None = None
    is_verifying: bool = False
    is_json: bool = False

    def answer(self, console: Console) -> int:
        """Print where the run stands; the exit code."""
        from bayesnde_cli.stages.status import run_status

        found = run_status(RunLayout(run_directory(self.run)), list(STAGE_CONFIGS), is_verifying=self.is_verifying)
        if self.is_json:
            console.result_json(found.as_dict())
            return 0 if found.is_sound else 3
        lines = [_line(item) for item in found.stages]
        console.result(f"run directory: {found.run}")
        console.result(aligned(["stage", "state", "blocks", "shards", "detail"], lines))
        for array in found.arrays:
            console.result(str(array))
        console.result(f"next: {found.next_command or 'nothing, all stages are done'}")
        return 0 if found.is_sound else 3


def _line(item: "StageStatus") -> list[str]:
    """A stage as a line of the table."""
    name = item.stage if item.set_name is None else f"{item.stage}/{item.set_name}"
    blocks, shards, details = "", "", [item.detail]
    if progress := item.progress:
        blocks = f"{progress.blocks_done:,} of {progress.blocks:,}"
        if progress.shards is not None:
            shards = f"{progress.shards_done:,} of {progress.shards:,}"
        if item.state == "running":
            details.append(f"{progress.rows_done:,} of {progress.rows:,} rows")
        elif item.state == "interrupted" and progress.blocks_done == progress.blocks:
            details.append("only to combine the blocks")
        if progress.seconds_left is not None:
            details.append(f"about {duration(progress.seconds_left)} left")
    return [name, str(item.state), blocks, shards, ", ".join(details)]


def plain_question(arguments: list[str]) -> StatusQuestion | None:
    """The question of a command line that is `status` with its options in their plain spelling; else None.

    Everything else (help, mistakes, other commands) is for the option parser.
    """
    if arguments[:1] != ["status"]:
        return None
    run, flags = None, set()
    rest = iter(arguments[1:])
    for word in rest:
        if word == "--run":
            run = next(rest, "")
            if not run or run.startswith("-"):
                return None
        elif word in ("--json", "--verify"):
            flags.add(word)
        else:
            return None
    return StatusQuestion(run, "--verify" in flags, "--json" in flags)
