"""What scoring leaves to the rows: blocks and draws."""

from dataclasses import replace

import pytest

from bayesnde_cli.config import SCORED_IMAGES, SCORED_TABLE, DensityConfig, PosteriorConfig
from bayesnde_cli.data.image import ImageShape
from bayesnde_cli.data.roles import Roles
from bayesnde_cli.data.schema import Schema
from bayesnde_cli.stages.scoring.sizes import settled

_TABLE = Schema(Roles(("a",)), (), (), False, 0)
_IMAGES = replace(_TABLE, image=ImageShape(2, 2, 1))


@pytest.mark.parametrize(("schema", "usual"), [(_TABLE, SCORED_TABLE), (_IMAGES, SCORED_IMAGES)])
def test_images_have_smaller_blocks_and_fewer_draws(schema: Schema, usual: dict) -> None:
    found = settled(DensityConfig(), schema)
    assert {name: getattr(found, name) for name in usual} == usual
    assert replace(found, **dict.fromkeys(usual)) == DensityConfig()  # nothing else changes
    assert settled(PosteriorConfig(), schema).block_rows == usual["block_rows"]


def test_what_was_set_stays() -> None:
    config = DensityConfig(block_rows=3, pilot_draws=0, proposal_draws=77)
    assert settled(config, _TABLE) == settled(config, _IMAGES) == config
