"""A plan divides rows into blocks, once for everybody."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesnde_cli.artifacts import plan as plans
from bayesnde_cli.artifacts.fingerprint import sha256_json
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan, blocks_done, create_or_join, join, missing_blocks
from bayesnde_cli.errors import BadArtifact, BadUsage, MissingArtifact, SettingsDiffer

PLAN = Plan("density", "test", "r" * 16, n_rows=1000, block_rows=64, seed=7, inputs={"rows": "a" * 64})


@pytest.fixture
def layout(tmp_path, monkeypatch) -> RunLayout:
    monkeypatch.chdir(tmp_path)
    return RunLayout(Path("run"))


@given(n_rows=st.integers(0, 5000), block_rows=st.integers(1, 300))
def test_blocks_cover_every_row_once_in_order(n_rows, block_rows):
    plan = replace(PLAN, n_rows=n_rows, block_rows=block_rows)
    ranges = [plan.rows(block) for block in range(plan.n_blocks)]
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(n_rows))
    assert all(stop - start == block_rows for start, stop in ranges[:-1])


def test_there_is_no_block_after_the_last():
    assert PLAN.n_blocks == 16
    assert PLAN.rows(15) == (960, 1000)
    for block in (-1, 16):
        with pytest.raises(IndexError):
            PLAN.rows(block)


def test_a_plan_needs_blocks_of_at_least_one_row():
    with pytest.raises(ValueError, match="a plan of 1000 rows in blocks of 0"):
        replace(PLAN, block_rows=0)


@pytest.mark.parametrize("changes", [{"seed": 8}, {"stage": "posterior"}, {"inputs": {}}, {"settings": {"draws": 1}}])
def test_the_hash_of_a_plan_covers_all_of_it(changes):
    assert replace(PLAN, **changes).plan_hash != PLAN.plan_hash
    assert replace(PLAN).plan_hash == PLAN.plan_hash


def test_an_equal_plan_is_joined(layout):
    assert create_or_join(layout, PLAN) == PLAN
    assert create_or_join(layout, replace(PLAN)) == PLAN


def test_a_plan_of_more_blocks_than_can_be_read_back_is_not_made(layout):
    with pytest.raises(BadUsage) as caught:
        create_or_join(layout, replace(PLAN, n_rows=100_000_001, block_rows=1))
    assert str(caught.value) == (
        "error: no folder holds so many blocks\n"
        "  100000001 rows in blocks of 1: too many blocks\n"
        "hint: make larger ones, with --block-rows"
    )
    assert create_or_join(layout, replace(PLAN, n_rows=100_000_000, block_rows=1)).n_blocks == 100_000_000


def test_joining_alone_makes_no_plan(layout):
    with pytest.raises(MissingArtifact):
        join(layout, PLAN)
    assert not layout.plan_file("density", "test").exists()
    create_or_join(layout, PLAN)
    assert join(layout, PLAN) == PLAN


def test_versions_are_recorded_and_make_no_other_plan(layout):
    first = replace(PLAN, packages={"numpy": "1.0"})
    assert create_or_join(layout, first).packages == {"numpy": "1.0"}
    joined = create_or_join(layout, replace(PLAN, packages={"numpy": "2.0"}))
    assert joined.packages == {"numpy": "1.0"}
    assert joined == PLAN
    assert joined.plan_hash == PLAN.plan_hash


def test_a_plan_of_an_earlier_version_is_refused(layout):
    """Its blocks do not say what their SHA-256 is."""
    path = layout.plan_file("density", "test")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(PLAN.identity | {"schema_version": 1}))
    with pytest.raises(SettingsDiffer) as caught:
        create_or_join(layout, PLAN)
    assert caught.value.found == ("schema_version: 1 -> 2",)


def test_another_plan_is_refused_with_what_differs(layout):
    create_or_join(layout, PLAN)
    with pytest.raises(SettingsDiffer) as caught:
        create_or_join(layout, replace(PLAN, block_rows=32, inputs={"rows": "b" * 64}))
    assert str(caught.value) == (
        "error: density/test was made with other settings or data\n"
        "  block_rows: 64 -> 32\n"
        "  inputs.rows: aaaaaaaaaaaa… -> bbbbbbbbbbbb…\n"
        "hint: run `bayesnde density --restart` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`"
    )
    assert plans.read(layout.plan_file("density", "test")) == PLAN


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"n_rows": -1}, "n_rows is -1"),
        ({"block_rows": 0}, "block_rows is 0"),
        ({"n_rows": 2**63}, "9223372036854775808 rows in blocks of 64: too many blocks"),
        ({"block_rows": 1.5}, "block_rows is 1.5"),
        ({"inputs": []}, "inputs is []"),
        ({"settings": 1}, "settings is 1"),
        ({"run_id": 3}, "run_id is 3"),
        ({"set_name": "../../etc"}, "it belongs to density/../../etc"),
        ({"stage": "posterior"}, "it belongs to posterior/test"),
        ({}, "sha256 is not there"),
        ({"seed": 8, "sha256": sha256_json(asdict(PLAN))}, "it does not say what its own sha256 says"),
        ({"other": 3}, "other is unknown"),
    ],
)
def test_a_damaged_plan_is_named(layout, changes, found):
    create_or_join(layout, PLAN)
    path = layout.plan_file("density", "test")
    path.write_text(json.dumps({**asdict(PLAN), **changes}))
    with pytest.raises(BadArtifact) as caught:
        plans.read(path)
    assert str(caught.value) == (
        f"error: run/density/test/plan.json is damaged\n  {found}\nhint: run `bayesnde density --restart`"
    )


def test_blocks_are_counted_by_name(layout):
    assert blocks_done(layout, PLAN) == set()
    folder = layout.stage_dir("density", "test")
    folder.mkdir(parents=True)
    for name in ("block-00000.parquet", "block-00003.parquet", "block-00016.parquet", ".claim-00001", "plan.json"):
        (folder / name).touch()
    assert blocks_done(layout, PLAN) == {0, 3}  # block 16 is not of this plan
    assert missing_blocks(layout, PLAN) == [1, 2, *range(4, 16)]


def test_blocks_are_counted_with_one_listing_and_no_look_at_any_file(layout, monkeypatch):
    plan = replace(PLAN, n_rows=100_000, block_rows=1)
    names = [layout.block_file("density", "test", index).name for index in range(99_990)]
    listed = []
    monkeypatch.setattr("os.listdir", lambda folder: listed.append(folder) or names)
    assert missing_blocks(layout, plan) == list(range(99_990, 100_000))
    assert listed == [layout.stage_dir("density", "test")]
