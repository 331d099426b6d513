"""How far a stage has come, told from file names and a few of their times."""

import os
import random
from pathlib import Path

import pytest

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan, create_or_join
from bayesnde_cli.stages import status
from bayesnde_cli.stages.block_progress import block_progress, seconds_each


@pytest.mark.parametrize(
    ("times", "each"),
    [
        ([], None),
        ([5.0], None),
        ([0.0, 10.0], 10.0),
        ([0.0, 9.0, 20.0, 30.0], 10.0),
        ([0.0, 10.0, 20.0, 80_000.0, 80_010.0], 10.0),  # a night between two evenings
        ([0.0, 0.0, 30.0], 15.0),
        ([0.0, 0.0, 0.0, 30.0, 30.0, 30.0, 60.0, 60.0, 60.0], 7.5),  # three processes that keep step
    ],
)
def test_the_time_from_block_to_block(times: list[float], each: float | None) -> None:
    assert seconds_each(times) == each


def _begun(tmp_path: Path, n_rows: int) -> RunLayout:
    layout = RunLayout(tmp_path)
    create_or_join(layout, Plan("density", "test", "id", n_rows=n_rows, block_rows=10, seed=0))
    return layout


def test_rows_and_the_time_left_of_a_stage_at_work(tmp_path: Path) -> None:
    layout = _begun(tmp_path, n_rows=95)
    for block in (0, 1, 2, 9):
        path = layout.block_file("density", "test", block)
        path.touch()
        os.utime(path, (0, 1_000_000 + 7 * min(block, 3)))
    names = os.listdir(layout.stage_dir("density", "test"))
    progress = block_progress(layout, "density", "test", names, is_running=True)
    assert progress is not None
    assert (progress.blocks_done, progress.blocks, progress.rows_done, progress.rows) == (4, 10, 35, 95)
    assert progress.seconds_left == pytest.approx(6 * 7.0)
    resting = block_progress(layout, "density", "test", names, is_running=False)
    assert resting is not None
    assert resting.seconds_left is None


def test_a_sample_of_the_files_gives_the_pace_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = _begun(tmp_path, n_rows=1_000_000)
    order = random.Random(1).sample(range(80_000), 80_000)  # blocks in no order, one every 3 seconds
    finished = {layout.block_file("density", "test", block): 3.0 * turn for turn, block in enumerate(order)}
    stat, looks = os.stat, []

    def timed(path: Path, *args: object, **options: object) -> os.stat_result:
        looks.append(path)
        return os.stat_result((*[0] * 8, finished[path], 0)) if path in finished else stat(path, *args, **options)

    monkeypatch.setattr("os.stat", timed)
    names = [path.name for path in finished]
    progress = block_progress(layout, "density", "test", names, is_running=True)
    assert progress is not None
    assert progress.seconds_left == pytest.approx(20_000 * 3.0, rel=0.25)  # 200 random gaps: 7 % standard error
    assert len(looks) < 2_100


def test_a_folder_of_many_blocks_is_listed_once_and_no_block_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = _begun(tmp_path, n_rows=1_000_000)
    folder = layout.stage_dir("density", "test")
    names = ["plan.json", *(layout.block_file("density", "test", block).name for block in range(99_000))]
    listed, read = [], []
    monkeypatch.setattr("os.listdir", lambda path: listed.append(path) or names)
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or read_bytes(path))
    (item,) = [item for item in status.run_status(layout, ["density"]).stages if item.stage == "density"]
    assert (item.state, item.progress.blocks_done, item.progress.rows_done) == ("interrupted", 99_000, 990_000)
    assert listed.count(folder) == 1
    assert set(read) <= {"plan.json", ".running"}
