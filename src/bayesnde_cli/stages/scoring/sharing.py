"""Many processes on the blocks of one data set: each takes what nobody has, and at the end all of it is there."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

from bayesnde_cli.artifacts import claims
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan, blocks_done, join
from bayesnde_cli.errors import MissingArtifact
from bayesnde_cli.stages.reporting import Report, counted

# How often to look after work that others are at.
POLL_SECONDS = 0.5


def share(layout: RunLayout, plan: Plan, blocks: Iterable[int], compute: Callable[[int], None], report: Report) -> None:
    """Have all of `blocks` published: compute what is missing, block by block, and wait for what others have claimed.

    `compute` publishes its block. What a process that died had claimed is taken over. `SettingsDiffer` if another
    process has begun the stage anew with another plan, `MissingArtifact` if it has removed the plan and is about to:
    blocks of two plans never come together.
    """
    wanted = list(blocks)
    done = blocks_done(layout, plan)
    waiting = [block for block in wanted if block not in done]
    is_told = False
    with report.progress(plan.stage, len(wanted), "blocks") as advance:
        advance(len(wanted) - len(waiting))
        while waiting:
            held = []
            for block in waiting:
                if _is_published(layout, plan, block, compute):
                    advance(1)
                else:
                    held.append(block)
            waiting = held
            if waiting:
                if not is_told:
                    report.note(f"waiting for {counted(len(waiting), 'block')} of other processes")
                    is_told = True
                time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def alone(layout: RunLayout, stage: str, set_name: str, report: Report) -> Iterator[None]:
    """The stage on a data set to ourselves; while another process has it we wait."""
    path = layout.claim_file(stage, set_name)
    is_told = False
    while True:
        with claims.holding(path) as ours:
            if ours is not None:
                yield
                return
        if not is_told:
            report.note(waiting_for(layout, stage, set_name))
            is_told = True
        time.sleep(POLL_SECONDS)


def waiting_for(layout: RunLayout, stage: str, set_name: str) -> str:
    """A note that a stage on a data set is waited for, and who has it."""
    who = claims.holder(layout.claim_file(stage, set_name))
    return f"waiting for {layout.label(stage, set_name)}" + (f": {who} is at it" if who else "")


def _is_published(layout: RunLayout, plan: Plan, block: int, compute: Callable[[int], None]) -> bool:
    """Whether a block is there, computed now if nobody else is at it."""
    path = layout.block_file(plan.stage, plan.set_name, block)
    if path.exists():
        return True
    with claims.holding(layout.claim_file(plan.stage, plan.set_name, block)) as ours:
        if ours is None or _is_being_removed(layout, plan):
            return False
        _join_again(layout, plan)
        if not path.exists():  # published between the look and the claim
            compute(block)
    return True


def _join_again(layout: RunLayout, plan: Plan) -> None:
    """Join the plan again: the stage may have been removed since the last block.

    Never make it again: it would be in the way of the process that has removed it, and makes one of its own.
    """
    try:
        join(layout, plan)
    except MissingArtifact as error:
        raise MissingArtifact(
            f"{layout.label(plan.stage, plan.set_name)} was removed while this process was at work on it",
            found=error.what,
            hint=f"look with `{layout.command('status')}` whether it has been begun anew; if not, run the same command "
            "again",
        ) from None


def _is_being_removed(layout: RunLayout, plan: Plan) -> bool:
    """Whether a process has the stage to itself, as `discard` does. To be asked when the claim on a block is ours."""
    who = claims.holder(layout.claim_file(plan.stage, plan.set_name))
    return who is not None and who.is_alive
