"""A plan divides rows into blocks once for everybody; shards cover every block once; blocks are published once."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesnde_cli.errors import BadArtifact, BadUsage, MissingArtifact, SettingsDiffer
from bayesnde_cli.runs.blocks import (
    Plan,
    Shard,
    blocks_done,
    create_or_join,
    freeze,
    iter_blocks,
    join,
    missing_shards,
    parse_shard,
    publish_block,
    read_block,
)
from bayesnde_cli.runs.layout import RunLayout

FACTS: dict[str, Any] = {
    "stage": "density",
    "set_name": "test",
    "run_id": "r" * 16,
    "n_rows": 1000,
    "block_rows": 64,
    "seed": 7,
}
PLAN = Plan(**FACTS, inputs={"rows": "a" * 64})


def change(**changes: Any) -> Plan:
    return Plan(**{**PLAN.model_dump(), **changes})


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.chdir(tmp_path)
    return RunLayout(Path("run"))


@given(n_rows=st.integers(0, 5000), block_rows=st.integers(1, 300))
def test_blocks_cover_every_row_once_in_order(n_rows: int, block_rows: int) -> None:
    plan = change(n_rows=n_rows, block_rows=block_rows)
    ranges = [plan.rows(block) for block in range(plan.n_blocks)]
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(n_rows))
    assert all(stop - start == block_rows for start, stop in ranges[:-1])


def test_an_equal_plan_is_joined(layout: RunLayout) -> None:
    with pytest.raises(MissingArtifact):
        join(layout, PLAN)
    assert not layout.plan_file("density", "test").exists()
    assert create_or_join(layout, PLAN) == PLAN
    assert create_or_join(layout, change()) == PLAN
    assert join(layout, PLAN) == PLAN


def test_another_plan_is_refused_with_what_differs(layout: RunLayout) -> None:
    create_or_join(layout, PLAN)
    with pytest.raises(SettingsDiffer) as caught:
        create_or_join(layout, change(block_rows=32, inputs={"rows": "b" * 64}))
    assert str(caught.value) == (
        "error: density/test was made with other settings or data\n"
        "  block_rows: 64 -> 32\n"
        "  inputs.rows: aaaaaaaaaaaa… -> bbbbbbbbbbbb…\n"
        "hint: run `bayesnde density --restart` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`"
    )
    assert Plan.read(layout.plan_file("density", "test")) == PLAN


def test_blocks_are_published_once_and_gathered_in_order(layout: RunLayout) -> None:
    plan = change(n_rows=250, block_rows=100)
    table = pa.table({"row_id": range(250), "log_density": [float(row) for row in range(250)]})
    assert blocks_done(layout, plan) == set()
    for block in (2, 0, 1):
        start, stop = plan.rows(block)
        assert publish_block(layout, plan, block, table.slice(start, stop - start)) is True
        assert publish_block(layout, plan, block, table.slice(0, 1)) is False
    assert blocks_done(layout, plan) == {0, 1, 2}
    assert blocks_done(layout, change(n_rows=200, block_rows=100)) == {0, 1}  # block 2 is not of this plan
    gathered = pa.concat_tables(iter_blocks(layout, plan))
    assert gathered.replace_schema_metadata(None).equals(table)


def test_a_block_of_another_plan_is_refused(layout: RunLayout) -> None:
    other = change(seed=8)
    publish_block(layout, other, 0, pa.table({"row_id": range(64)}))
    with pytest.raises(BadArtifact) as caught:
        read_block(layout, PLAN, 0)
    assert str(caught.value) == (
        "error: run/density/test/block-00000.parquet is not the expected table\n"
        f"  bayesnde.plan_hash is {other.plan_hash}, expected {PLAN.plan_hash}\n"
        "hint: delete that file and run `bayesnde density`; finished blocks are kept"
    )


WAY_OUT = "hint: write `--shard 3/8` for the third of eight shards, or `--shard auto` in a SLURM array"


def array(task: int, tasks: list[int]) -> dict[str, str]:
    """The environment of one task of `sbatch --array=…`."""
    values = {"ID": task, "COUNT": len(tasks), "MIN": min(tasks), "MAX": max(tasks)}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def auto(layout: RunLayout, task: int, tasks: list[int]) -> Shard:
    return freeze(layout, "density", "test", parse_shard("auto", array(task, tasks)))


@given(n_blocks=st.integers(0, 500), count=st.integers(1, 60))
def test_shards_are_disjoint_complete_and_of_equal_size(n_blocks: int, count: int) -> None:
    shards = [Shard(index, count) for index in range(1, count + 1)]
    parts = [list(shard.blocks(n_blocks)) for shard in shards]
    assert sorted(block for part in parts for block in part) == list(range(n_blocks))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for shard, part in zip(shards, parts, strict=True):
        assert all(block % count + 1 == shard.index for block in part)


@given(n_blocks=st.integers(0, 60), count=st.integers(1, 20), data=st.data())
def test_a_shard_is_missing_as_long_as_one_of_its_blocks_is(n_blocks: int, count: int, data: st.DataObject) -> None:
    done = data.draw(st.sets(st.integers(0, max(n_blocks - 1, 0))))
    parts = {index: set(Shard(index, count).blocks(n_blocks)) for index in range(1, count + 1)}
    assert missing_shards(done, count, n_blocks) == [index for index, part in parts.items() if not part <= done]


@pytest.mark.parametrize("text", ["x/8", "3/8/2", "٣/٨", "9/8", "0/0"])
def test_an_impossible_shard_is_refused(text: str) -> None:
    with pytest.raises(BadUsage) as caught:
        parse_shard(text, {})
    found = "I and N are integers, and I goes from 1 to N"
    assert str(caught.value) == f"error: --shard {text} is not of the form I/N\n  {found}\n{WAY_OUT}"


def test_auto_outside_of_an_array_says_so() -> None:
    with pytest.raises(BadUsage) as caught:
        parse_shard("auto", {})
    assert str(caught.value) == (
        "error: --shard auto works inside a SLURM array job only\n"
        "  SLURM_ARRAY_TASK_ID is not set\n"
        "hint: submit with `sbatch --array=1-8 …`, or write `--shard 3/8`"
    )


@pytest.mark.parametrize("first", [0, 1])
def test_a_resubmitted_part_of_an_array_computes_the_same_shards(tmp_path: Path, first: int) -> None:
    layout = RunLayout(tmp_path)
    whole = list(range(first, first + 8))
    shards = {task: auto(layout, task, whole) for task in whole}
    assert list(shards.values()) == [Shard(index, 8) for index in range(1, 9)]
    for part in ([3, 7], [5], whole[:4]):
        assert [auto(layout, task, part) for task in part] == [shards[task] for task in part]


def test_a_first_array_with_gaps_or_another_start_is_refused(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    with pytest.raises(BadUsage) as caught:
        auto(layout, 3, [1, 3, 5, 7])
    assert str(caught.value) == (
        "error: the first array of a set must be whole, and start at 0 or 1\n"
        "  this one has 4 tasks, from 1 to 7\n"
        "hint: submit with `--array=1-4`; parts of it can be submitted again later"
    )
    assert not layout.shards_file("density", "test").exists()


def test_a_task_outside_of_the_frozen_array_gets_the_right_command(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    auto(layout, 0, list(range(8)))
    with pytest.raises(BadUsage) as caught:
        auto(layout, 8, [8])
    assert str(caught.value) == (
        "error: density/test is divided into 8 shards\n"
        "  array task 8 is outside of them\n"
        f"hint: submit with `--array=0-7`; to divide it again, delete {tmp_path}/density/test/shards.json"
    )


def test_an_explicit_shard_must_agree_with_the_frozen_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    layout = RunLayout(Path("run"))
    auto(layout, 1, list(range(1, 9)))
    assert freeze(layout, "density", "test", Shard(3, 8)) == Shard(3, 8)
    with pytest.raises(BadUsage) as caught:
        freeze(layout, "density", "test", Shard(3, 4))
    assert str(caught.value) == (
        "error: density/test is divided into 8 shards, not 4\n"
        "  asked for --shard 3/4\n"
        "hint: run `bayesnde density --shard 3/8`; to divide it again, delete run/density/test/shards.json"
    )
