"""Shards cover every block once, and an array's division holds for everybody who comes later."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesnde_cli.artifacts.fingerprint import sha256_json
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.shards import ArrayTask, Shard, blocks_of, freeze, missing_shards, parse_shard
from bayesnde_cli.errors import BadArtifact, BadUsage

WAY_OUT = "hint: write `--shard 3/8` for the third of eight shards, or `--shard auto` in a SLURM array"


def array(task: int, tasks: list[int]) -> dict[str, str]:
    """The environment of one task of `sbatch --array=…`."""
    values = {"ID": task, "COUNT": len(tasks), "MIN": min(tasks), "MAX": max(tasks)}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def auto(layout: RunLayout, task: int, tasks: list[int]) -> Shard:
    return freeze(layout, "density", "test", parse_shard("auto", array(task, tasks)))


@given(n_blocks=st.integers(0, 500), count=st.integers(1, 60))
def test_shards_are_disjoint_complete_and_of_equal_size(n_blocks, count):
    shards = [Shard(index, count) for index in range(1, count + 1)]
    parts = [list(blocks_of(shard, n_blocks)) for shard in shards]
    assert sorted(block for part in parts for block in part) == list(range(n_blocks))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for shard, part in zip(shards, parts, strict=True):
        assert all(block % count + 1 == shard.index for block in part)


@given(n_blocks=st.integers(0, 60), count=st.integers(1, 20), data=st.data())
def test_a_shard_is_missing_as_long_as_one_of_its_blocks_is(n_blocks, count, data):
    done = data.draw(st.sets(st.integers(0, max(n_blocks - 1, 0))))
    parts = {index: set(blocks_of(Shard(index, count), n_blocks)) for index in range(1, count + 1)}
    assert missing_shards(done, count, n_blocks) == [index for index, part in parts.items() if not part <= done]


def test_shards_of_many_blocks_are_counted_at_once():
    """A loop over the blocks would take hours."""
    assert missing_shards({0, 1, 8}, 8, 10**12) == list(range(1, 9))
    assert missing_shards({0, 2}, 10**18, 3) == [2]


@given(count=st.integers(1, 10**6), data=st.data())
def test_a_shard_reads_back_as_it_prints(count, data):
    shard = Shard(data.draw(st.integers(1, count)), count)
    assert parse_shard(str(shard), {}) == shard


@pytest.mark.parametrize("text", ["3", "x/8", "3/", "-1/8", "3/8/2", "", "1.0/8", "٣/٨", " 3/8"])
def test_a_shard_of_another_form_is_refused(text):
    with pytest.raises(BadUsage) as caught:
        parse_shard(text, {})
    assert str(caught.value) == f"error: --shard {text} is not of the form I/N\n  I and N are whole numbers\n{WAY_OUT}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0/8", "I goes from 1 to N = 8"),
        ("9/8", "I goes from 1 to N = 8"),
        ("3/0", "N must be at least 1"),
        ("0/0", "N must be at least 1"),
    ],
)
def test_a_shard_out_of_range_is_refused(text, found):
    with pytest.raises(BadUsage) as caught:
        parse_shard(text, {})
    assert str(caught.value) == f"error: --shard {text} is out of range\n  {found}\n{WAY_OUT}"


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, "SLURM_ARRAY_TASK_ID is not set"),
        ({"SLURM_ARRAY_TASK_ID": "3"}, "SLURM_ARRAY_TASK_COUNT is not set"),
        ({"SLURM_ARRAY_TASK_ID": "%a"}, "SLURM_ARRAY_TASK_ID is '%a'"),
    ],
)
def test_auto_outside_of_an_array_says_so(environ, found):
    with pytest.raises(BadUsage) as caught:
        parse_shard("auto", environ)
    assert str(caught.value) == (
        "error: --shard auto works inside a SLURM array job only\n"
        f"  {found}\n"
        "hint: submit with `sbatch --array=1-8 …`, or write `--shard 3/8`"
    )


def test_auto_reads_the_task_from_the_environment():
    assert parse_shard("auto", array(3, [3, 7])) == ArrayTask(id=3, count=2, min=3, max=7)


@pytest.mark.parametrize("first", [0, 1])
def test_a_resubmitted_part_of_an_array_computes_the_same_shards(tmp_path, first):
    layout = RunLayout(tmp_path)
    whole = list(range(first, first + 8))
    shards = {task: auto(layout, task, whole) for task in whole}
    assert list(shards.values()) == [Shard(index, 8) for index in range(1, 9)]
    for part in ([3, 7], [5], whole[:4]):
        assert [auto(layout, task, part) for task in part] == [shards[task] for task in part]


def test_the_division_is_kept_beside_the_plan(tmp_path):
    layout = RunLayout(tmp_path)
    auto(layout, 3, [1, 2, 3])
    kept = json.loads(layout.shards_file("density", "test").read_text())
    assert kept.pop("sha256") == sha256_json(kept)
    assert kept == {"schema_version": 2, "first": 1, "count": 3}


@pytest.mark.parametrize(
    ("tasks", "found", "line"),
    [
        ([3, 7], "this one has 2 tasks, from 3 to 7", "--array=1-2"),
        ([1, 3, 5, 7], "this one has 4 tasks, from 1 to 7", "--array=1-4"),
        ([2, 3, 4], "this one has 3 tasks, from 2 to 4", "--array=1-3"),
    ],
)
def test_a_first_array_with_gaps_or_another_start_is_refused(tmp_path, tasks, found, line):
    layout = RunLayout(tmp_path)
    with pytest.raises(BadUsage) as caught:
        auto(layout, 3, tasks)
    assert str(caught.value) == (
        "error: the first array of a set must be whole, and start at 0 or 1\n"
        f"  {found}\n"
        f"hint: submit with `{line}`; parts of it can be submitted again later"
    )
    assert not layout.shards_file("density", "test").exists()


@pytest.mark.parametrize(
    ("first", "task", "line"), [(1, 9, "--array=1-8"), (1, 0, "--array=1-8"), (0, 8, "--array=0-7")]
)
def test_a_task_outside_of_the_frozen_array_is_told_the_right_line(tmp_path, first, task, line):
    layout = RunLayout(tmp_path)
    auto(layout, first, list(range(first, first + 8)))
    with pytest.raises(BadUsage) as caught:
        auto(layout, task, [task])
    assert str(caught.value) == (
        "error: density/test is divided into 8 shards\n"
        f"  array task {task} is none of them\n"
        f"hint: submit with `{line}`; to divide it anew, delete {tmp_path}/density/test/shards.json"
    )


def test_an_explicit_shard_must_agree_with_the_frozen_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layout = RunLayout(Path("run"))
    auto(layout, 1, list(range(1, 9)))
    assert freeze(layout, "density", "test", Shard(3, 8)) == Shard(3, 8)
    with pytest.raises(BadUsage) as caught:
        freeze(layout, "density", "test", Shard(3, 4))
    assert str(caught.value) == (
        "error: density/test is divided into 8 shards, not 4\n"
        "  asked for --shard 3/4\n"
        "hint: run `bayesnde density --shard 3/8`; to divide it anew, delete run/density/test/shards.json"
    )


def test_explicit_shards_alone_freeze_nothing(tmp_path):
    layout = RunLayout(tmp_path)
    assert freeze(layout, "density", "test", Shard(2, 4)) == Shard(2, 4)
    assert not layout.shards_file("density", "test").exists()


def test_a_damaged_division_is_named(tmp_path):
    layout = RunLayout(tmp_path)
    path = layout.shards_file("density", "test")
    path.parent.mkdir(parents=True)
    path.write_text('{"schema_version": 1, "first": 2, "count": 8}')
    with pytest.raises(BadArtifact) as caught:
        freeze(layout, "density", "test", Shard(2, 8))
    assert str(caught.value) == (
        f"error: {path} is damaged\n"
        "  first is 2, count is 8\n"
        f"hint: delete that file and run `bayesnde density --run {tmp_path}`; finished blocks are kept"
    )
