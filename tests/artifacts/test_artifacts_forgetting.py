"""The checkpoint of a stage goes when the stage is complete, also if its process was killed before it could do that."""

import os
from pathlib import Path

import numpy as np
import pytest

from bayesnde_cli.artifacts import claims
from bayesnde_cli.artifacts.arrays import write_arrays
from bayesnde_cli.artifacts.forgetting import forget_checkpoint, forget_leftover
from bayesnde_cli.artifacts.layout import RunLayout

OURS, OTHERS = {"settings": {"epochs": 3}}, {"settings": {"epochs": 4}}
ALL = ["look-00000.npz", "look-00003.npz", "state.npz"]


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A stage with a checkpoint."""
    layout = RunLayout(tmp_path)
    write_arrays(layout.checkpoint_file("refine"), {"a": np.ones(2)}, {"identity": OURS})
    for look in (0, 3):
        write_arrays(layout.look_file("refine", look), {"a": np.ones(2)}, {})
    return layout


def _left(layout: RunLayout) -> list[str]:
    return sorted(os.listdir(layout.checkpoint_dir("refine")))


def test_everything_is_forgotten_and_a_stage_without_a_checkpoint_is_no_error(layout: RunLayout) -> None:
    forget_checkpoint(layout, "refine")
    assert _left(layout) == []
    forget_checkpoint(layout, "warmstart")
    forget_leftover(layout, "warmstart", OURS)


def test_a_leftover_goes_and_the_claim_with_it(layout: RunLayout) -> None:
    forget_leftover(layout, "refine", OURS)
    assert _left(layout) == []
    assert os.listdir(layout.stage_dir("refine")) == ["checkpoint"]


def test_a_leftover_that_was_half_removed_goes(layout: RunLayout) -> None:
    layout.checkpoint_file("refine").unlink()
    forget_leftover(layout, "refine", OURS)
    assert _left(layout) == []


def test_the_checkpoint_of_a_restart_with_other_settings_stays(layout: RunLayout) -> None:
    forget_leftover(layout, "refine", OTHERS)
    assert _left(layout) == ALL


def test_a_checkpoint_that_cannot_be_read_is_not_ours_to_remove(layout: RunLayout) -> None:
    layout.checkpoint_file("refine").write_bytes(b"damaged")
    forget_leftover(layout, "refine", OURS)
    assert _left(layout) == ALL


def test_nothing_goes_while_a_process_is_at_work(layout: RunLayout) -> None:
    with claims.running(layout, "refine"):
        forget_leftover(layout, "refine", OURS)
    assert _left(layout) == ALL
