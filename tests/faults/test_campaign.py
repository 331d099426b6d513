"""Stages that are killed, stopped, refused their writes, moved, and run by a crowd: in the end, the same bytes."""

import errno
import shutil
import signal
from pathlib import Path

import pytest
from campaign import KINDS, Campaign
from file_operations import FREEING
from scenes import SCENES, Theatre, differing, files_of
from victims import STAND_INS, Ended

N_AT_ONCE = 4
_REFUSED = (
    "hint: free some space, or choose a place that you may write to, and run the same command again; "
    "finished work is kept\n"
)


@pytest.mark.slow
def test_whatever_is_done_to_a_stage_its_files_are_in_the_end_those_of_an_undisturbed_run(theatre: Theatre) -> None:
    campaign = Campaign(theatre, seed=1)
    # `fit` and `evaluate` take longer; the campaign by hand has them, too.
    scenes = [SCENES[name] for name in ("prepare", "warmstart", "density", "density of draws", "density again")]
    campaign.disturb(scenes, {"kill": 10, "signal": 4, "refusal": 4})
    assert campaign.complaints == []
    assert all(campaign.hits[kind] >= 4 for kind in KINDS)
    assert campaign.n_files > 100


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_file_that_is_written_in_place_is_noticed(is_torn: bool, theatre: Theatre, tmp_path: Path) -> None:
    """The control: half a block has the name of a whole one."""
    stand_ins = STAND_INS | ({"torn writes": {}} if is_torn else {})
    own = Theatre(tmp_path, theatre.parent, stand_ins, begun=theatre)
    scene, campaign = SCENES["density"], Campaign(own, seed=1)
    steps = own.calm_end(scene).steps
    first, second, *_ = [index for index, step in enumerate(steps) if step.endswith("block-00002.parquet")]
    assert steps[first].startswith("parquet ")
    campaign.run(scene, [{"at": second + 1, "signal": int(signal.SIGKILL)}])
    assert campaign.hits["kill"] == 1
    assert (campaign.complaints != []) is is_torn


@pytest.mark.parametrize("name", ["prepare", "density"])
def test_a_full_disk_is_reported_and_then_the_work_resumes(name: str, theatre: Theatre, folder: Path) -> None:
    scene = SCENES[name]
    theatre.set_stage(scene, folder)
    at = len(theatre.calm_end(scene).steps) // 2
    mishap = {"at": at, "errno": errno.ENOSPC, "is_lasting": True, "spared": FREEING}
    ended = theatre.parent.run(folder, theatre.command(scene), mishap=mishap)
    assert ended.code == 2, ended.err
    assert ended.err.startswith("error: cannot write run/") or "\nerror: cannot write run/" in ended.err
    assert ended.err.endswith(f"\n  No space left on device\n{_REFUSED}")
    assert theatre.parent.run(folder, theatre.command(scene)).code == 0
    assert differing(files_of(folder / "run"), theatre.calm_files(scene)) == []


def test_a_read_only_disk_is_refused_and_what_is_done_can_still_be_used(theatre: Theatre, folder: Path) -> None:
    """Runs are archived, and shared with people who may only read them."""
    scene, read_only = SCENES["density of draws"], {"at": 1, "errno": errno.EROFS, "is_lasting": True}
    theatre.set_stage(scene, folder)
    before = files_of(folder / "run")
    ended = theatre.parent.run(folder, theatre.command(scene), mishap=read_only)
    assert (ended.code, ended.err.endswith(f"\n  Read-only file system\n{_REFUSED}")) == (2, True), ended.err
    assert files_of(folder / "run") == before
    assert theatre.parent.run(folder, theatre.command(scene)).code == 0
    density = ["density", "--out", "-", *theatre.command(scene)[1:]]
    for command in (theatre.command(scene), ["status"], ["outliers", "--top", "2"], density):
        ended = theatre.parent.run(folder, command, mishap=read_only)
        assert ended.code == 0, (command, ended.err)
    assert "log_density" in ended.out


def test_a_run_that_is_moved_or_copied_resumes_in_its_new_place(theatre: Theatre, folder: Path) -> None:
    scene = SCENES["density"]
    theatre.set_stage(scene, folder)
    at = len(theatre.calm_end(scene).steps) // 2
    ended = theatre.parent.run(folder, theatre.command(scene), mishap={"at": at, "signal": int(signal.SIGKILL)})
    assert ended.code == -signal.SIGKILL, ended.err
    copied, moved = folder.with_name("copied"), folder.with_name("moved")
    shutil.copytree(folder / "run", copied / "run", copy_function=shutil.copy)  # new times
    moved.mkdir()
    shutil.move(folder / "run", moved / "run")
    for where in (moved, copied):
        ended = theatre.parent.run(where, theatre.command(scene))
        assert ended.code == 0, ended.err
        assert differing(files_of(where / "run"), theatre.calm_files(scene)) == []


def _at_once(theatre: Theatre, folder: Path, commands: list[list[str]], **engine: object) -> list[Ended]:
    stand_ins = STAND_INS | {"engine": engine}
    crowd = [theatre.parent.start(folder, command, stand_ins=stand_ins) for command in commands]
    return [victim.wait() for victim in crowd]


def test_of_many_processes_on_one_shard_each_block_is_made_once_and_all_end_well(
    theatre: Theatre, folder: Path
) -> None:
    scene = SCENES["density"]
    theatre.set_stage(scene, folder)
    command, told = theatre.command(scene), folder.with_name("told")
    crowd = _at_once(theatre, folder, [[*command, "--shard", "2/2"]] * N_AT_ONCE, seconds=0.05, tells=str(told))
    assert [ended.code for ended in crowd] == [0] * N_AT_ONCE, [ended.err for ended in crowd]
    assert all("shard 2/2 done, 4 blocks; 4 of 8 blocks there" in ended.out for ended in crowd)
    seeds = told.read_text().split()
    assert len(seeds) == len(set(seeds)) == 4  # a block has its own seed
    crowd = _at_once(theatre, folder, [command] * N_AT_ONCE)  # and all gather
    assert [ended.code for ended in crowd] == [0] * N_AT_ONCE, [ended.err for ended in crowd]
    assert differing(files_of(folder / "run"), theatre.calm_files(scene)) == []


@pytest.mark.parametrize("name", ["warmstart", "density"])
def test_of_two_configurations_one_wins_and_the_others_are_refused(name: str, theatre: Theatre, folder: Path) -> None:
    scenes = [SCENES[name], SCENES[f"{name} again"]]  # they differ in their seed
    commands = [[word for word in theatre.command(scene) if word != "--restart"] for scene in scenes]
    theatre.set_stage(scenes[0], folder)
    crowd = _at_once(theatre, folder, commands * (N_AT_ONCE // 2), seconds=0.02)
    label = "density/new" if name == "density" else name
    for ended in crowd:
        if ended.code == 2:
            assert f"error: {label}" in ended.err
            assert "was made with other settings or data\n" in ended.err
        elif ended.code == 3:
            assert f"error: {label} is being made by another process\n" in ended.err
        else:
            assert ended.code == 0, ended.err
    (winner,) = {index % 2 for index, ended in enumerate(crowd) if ended.code == 0}
    assert theatre.parent.run(folder, commands[winner]).code == 0
    assert theatre.parent.run(folder, commands[1 - winner]).code == 2
    assert differing(files_of(folder / "run"), theatre.calm_files(scenes[winner])) == []
    assert differing(files_of(folder / "run"), theatre.calm_files(scenes[1 - winner])) != []
