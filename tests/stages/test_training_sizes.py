"""What is left to the training rows: networks, weight decay, and how looks are taken."""

from dataclasses import replace

import pytest

from bayesnde_cli.config import LARGE_TABLE, SMALL_TABLE, SMALL_TABLE_ROWS, RefineConfig, WarmstartConfig, resolve
from bayesnde_cli.errors import BadConfig
from bayesnde_cli.stages.training.sizes import refuse_misfits, sized


@pytest.mark.parametrize(("n_rows", "usual"), [(SMALL_TABLE_ROWS - 1, SMALL_TABLE), (SMALL_TABLE_ROWS, LARGE_TABLE)])
def test_few_rows_get_small_networks_and_weight_decay(n_rows: int, usual: dict) -> None:
    found = sized(WarmstartConfig(), n_rows)
    assert {name: getattr(found, name) for name in usual} == usual
    assert sized(RefineConfig(), n_rows).weight_decay == usual["weight_decay"]
    assert replace(found, **dict.fromkeys(usual)) == WarmstartConfig()  # nothing else changes


def test_what_was_set_stays() -> None:
    config = WarmstartConfig(
        width=7, depth=3, weight_decay=0.0, validation_rows=9, generated_rows=99, latent_dim=4, class_maps=False
    )
    assert sized(config, 100) == config
    assert sized(config, 100, are_images=True, n_classes=2) == config


def test_images_have_the_paper_s_networks_and_latents_however_few_they_are() -> None:
    found = sized(WarmstartConfig(), 100, are_images=True)
    assert (found.width, found.latent_dim, found.weight_decay) == (32, 10, 0.0)
    assert sized(RefineConfig(), 100, are_images=True).validation_rows == found.validation_rows == 128


@pytest.mark.parametrize("preset", ["paper-vehicle", "paper-odds", "paper-bank", "paper-gmm-low"])
def test_the_paper_s_recipes_have_its_networks_whatever_the_rows(preset: str) -> None:
    warmstart = sized(resolve(WarmstartConfig, flags={}, environ={}, preset=preset), 100)
    refine = sized(resolve(RefineConfig, flags={}, environ={}, preset=preset), 100)
    assert (warmstart.width, warmstart.depth, refine.weight_decay) == (256, 5, 0.0)


def test_a_first_look_at_images_leaves_them_their_depth() -> None:
    config = resolve(WarmstartConfig, flags={}, environ={}, preset="fast-images")
    refuse_misfits(config, 3, are_images=True)
    assert sized(config, 100, are_images=True, n_classes=3).width == 16
    with pytest.raises(BadConfig, match="fast-images"):
        refuse_misfits(resolve(WarmstartConfig, flags={}, environ={}, preset="fast"), 3, are_images=True)
