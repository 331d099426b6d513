"""Many processes on the blocks of one data set: each takes what nobody has, and at the end all of it is there."""

import time
from collections.abc import Callable, Iterable

from bayesnde_cli.artifacts import claims
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan, blocks_done
from bayesnde_cli.stages.reporting import Report, counted

# How often to look after blocks that others are at work on.
POLL_SECONDS = 0.5


def share(layout: RunLayout, plan: Plan, blocks: Iterable[int], compute: Callable[[int], None], report: Report) -> None:
    """Have all of `blocks` published: compute what is missing, block by block, and wait for what others have claimed.

    `compute` publishes its block. What a process that died had claimed is taken over.
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


def _is_published(layout: RunLayout, plan: Plan, block: int, compute: Callable[[int], None]) -> bool:
    """Whether a block is there, computed now if nobody else is at it."""
    path = layout.block_file(plan.stage, plan.set_name, block)
    if path.exists():
        return True
    with claims.holding(layout.claim_file(plan.stage, plan.set_name, block)) as ours:
        if ours is not None and not path.exists():  # published between the look and the claim
            compute(block)
    return ours is not None
