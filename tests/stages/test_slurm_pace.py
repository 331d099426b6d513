"""How long an array will take: the time of its tasks one after the other, and the pace of blocks that are done."""

import os
from pathlib import Path

import pytest

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.stages.slurm.pace import array_seconds, pace_of_done


@pytest.mark.parametrize(
    ("tasks", "limit", "expected"),
    [
        ([5.0, 7.0, 6.0], None, 7.0),
        ([5.0, 7.0, 6.0], 1, 18.0),
        ([5.0, 7.0, 6.0], 2, 11.0),  # the third one starts when the first ends
        ([5.0, 7.0, 6.0], 9, 7.0),
        ([], None, 0.0),
    ],
)
def test_tasks_start_as_soon_as_they_may(tasks: list[float], limit: int | None, expected: float) -> None:
    assert array_seconds(tasks, limit) == expected


def _done(tmp_path: Path, times: dict[int, float]) -> tuple[RunLayout, Plan]:
    layout = RunLayout(tmp_path / "run")
    plan = Plan("density", "test", "id", n_rows=400, block_rows=10, seed=0)
    for block, time in times.items():
        path = layout.block_file("density", "test", block)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (0, 1_000_000 + time))
    return layout, plan


def test_the_pace_of_a_task_is_that_of_its_own_shard(tmp_path: Path) -> None:
    """Four tasks at once finish a block every five seconds together, each of them one in twenty."""
    times = {block: 20.0 * (block // 4) + block % 4 for block in range(16)}
    layout, plan = _done(tmp_path, times)
    pace = pace_of_done(layout, plan, set(times), 4)
    assert pace is not None
    assert (pace.block_seconds, pace.rows_per_second) == (20.0, 0.5)
    assert pace.known_from == "16 blocks that are there"
    alone = pace_of_done(layout, plan, set(times), 1)
    assert alone is not None
    assert alone.block_seconds < 5.0


def test_few_blocks_and_blocks_that_were_copied_tell_no_pace(tmp_path: Path) -> None:
    layout, plan = _done(tmp_path, {0: 0.0, 1: 20.0, 2: 7.0, 3: 7.0})
    assert pace_of_done(layout, plan, {0, 1}, 1) is None
    assert pace_of_done(layout, plan, {0, 1, 2, 3}, 2) is None
    layout, plan = _done(tmp_path, dict.fromkeys(range(6), 3.0))
    assert pace_of_done(layout, plan, set(range(6)), 1) is None
