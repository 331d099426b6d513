"""A small campaign finds nothing, and one against files that are written in place does."""

import json
from collections.abc import Callable
from pathlib import Path

import campaign
import pytest
from scenes import SCENES, Theatre
from victims import STAND_INS


@pytest.fixture
def figures(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict]]:
    """Exit code and figures of a campaign."""

    def run(*arguments: str) -> tuple[int, dict]:
        code = campaign.main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_whatever_is_done_to_a_stage_its_files_are_in_the_end_those_of_an_undisturbed_run(figures: Callable) -> None:
    code, found = figures("--kills", "24", "--signals", "10", "--refusals", "10", "--seed", "1")
    assert (found["differing_files"], found["complaints"], found["lost_rows"]) == ([], [], 0)
    assert code == 0
    assert {kind: sum(counts.values()) for kind, counts in found["hits"].items()} == {
        "kill": 24, "signal": 10, "refusal": 10,
    }  # fmt: skip
    assert len(found["hits"]["kill"]) >= 5  # stages
    assert found["n_rows"] > 100


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_file_that_is_written_in_place_is_noticed(is_torn: bool, theatre: Theatre, tmp_path: Path) -> None:
    """The control: half a block has the name of a whole one."""
    stand_ins = STAND_INS | ({"torn writes": {}} if is_torn else {})
    own = Theatre(tmp_path, theatre.parent, stand_ins)
    played, scene = campaign.Campaign(own, seed=1), SCENES["density"]
    steps = own.calm_end(scene).steps
    begun, written, *_ = [index for index, step in enumerate(steps) if step.endswith("block-00002.parquet")]
    assert steps[begun].startswith("parquet ")
    played.kill_before(scene, written)
    assert played.figures.n_hits("kill") == 1
    assert played.figures.is_sound is not is_torn
