"""Many processes at once on one shard, and two configurations on one run: one wins, nothing is mixed."""

from pathlib import Path

import pytest
from scenes import SCENES, Scene, Theatre, differing, files_of
from victims import STAND_INS, Ended

N_AT_ONCE = 8


def _at_once(theatre: Theatre, folder: Path, commands: list[list[str]], **engine: object) -> list[Ended]:
    stand_ins = STAND_INS | {"engine": engine}
    crowd = [theatre.parent.start(folder, command, stand_ins=stand_ins) for command in commands]
    return [victim.wait() for victim in crowd]


@pytest.mark.parametrize("name", ["density", "posterior"])
def test_of_eight_processes_on_one_shard_each_block_is_made_once_and_all_end_well(
    name: str, theatre: Theatre, folder: Path
) -> None:
    scene = SCENES[name]
    theatre.set_stage(scene, folder)
    command, told = theatre.command(scene), folder.with_name("told")
    crowd = _at_once(theatre, folder, [[*command, "--shard", "2/2"]] * N_AT_ONCE, seconds=0.05, tells=str(told))
    assert [ended.code for ended in crowd] == [0] * N_AT_ONCE, [ended.err for ended in crowd]
    assert all("shard 2/2 done, 4 blocks; 4 of 8 blocks there" in ended.out for ended in crowd)
    if name == "density":
        seeds = told.read_text().split()
        assert len(seeds) == len(set(seeds)) == 4  # a block has its own seed
    crowd = _at_once(theatre, folder, [command] * N_AT_ONCE)  # and all gather
    assert [ended.code for ended in crowd] == [0] * N_AT_ONCE, [ended.err for ended in crowd]
    assert differing(files_of(folder / "run"), theatre.calm_files(scene)) == []


# Scenes that differ in their seed, beside those that they begin with.
TWO_CONFIGURATIONS = [
    ("prepare", "prepare again"),
    ("warmstart", "warmstart again"),
    ("density", "density again"),
    ("evaluate", "evaluate again"),
]


def _without_restart(theatre: Theatre, scene: Scene) -> list[str]:
    return [word for word in theatre.command(scene) if word != "--restart"]


@pytest.mark.parametrize("names", TWO_CONFIGURATIONS, ids=lambda names: names[0])
def test_of_two_configurations_one_wins_and_the_others_are_refused(
    names: tuple[str, str], theatre: Theatre, folder: Path
) -> None:
    scenes = [SCENES[name] for name in names]
    commands = [_without_restart(theatre, scene) for scene in scenes]
    theatre.set_stage(scenes[0], folder)
    crowd = _at_once(theatre, folder, commands * (N_AT_ONCE // 2), seconds=0.02)
    label = {"density": "density/new", "evaluate": "evaluate/test"}.get(names[0], names[0])
    for ended in crowd:
        if ended.code == 2:
            assert f"error: {label}" in ended.err
            assert "was made with other settings or data\n" in ended.err
            assert "seed: " in ended.err
        elif ended.code == 3:
            assert f"error: {label} is being made by another process\n" in ended.err
        else:
            assert ended.code == 0, ended.err
    winners = {index % 2 for index, ended in enumerate(crowd) if ended.code == 0}
    assert len(winners) == 1
    (winner,) = winners
    assert theatre.parent.run(folder, commands[winner]).code == 0
    assert theatre.parent.run(folder, commands[1 - winner]).code == 2
    assert differing(files_of(folder / "run"), theatre.calm_files(scenes[winner])) == []
    assert differing(files_of(folder / "run"), theatre.calm_files(scenes[1 - winner])) != []
