"""A small checkpoint of a training stage, for the fuzz campaign."""

from typing import Any

import numpy as np
import tensorflow as tf

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import WarmstartConfig
from bayesnde_cli.stages.training.checkpoints import Checkpoints
from bayesnde_cli.stages.training.fitting import Progress

_LOOKS = tuple({"phase": "elbo", "round": number, "marginal": value} for number, value in enumerate([-3.0, -1.0]))


def _checkpoints(layout: RunLayout) -> Checkpoints:
    return Checkpoints(layout, WarmstartConfig(), {"settings": {"seed": 1}})


def _template(phase: int) -> Any:
    return [{"average": tf.zeros(3), "step": tf.constant(0)}][phase]


def write(layout: RunLayout) -> None:
    """A checkpoint after two looks, of which the second one is the best."""
    checkpoints = _checkpoints(layout)
    checkpoints.write_weights(1, {"w": np.arange(3.0)})
    checkpoints.write(Progress(0, 1, {"average": tf.range(3.0), "step": tf.constant(7)}, (), _LOOKS))


def read(layout: RunLayout) -> object:
    """What a stage would go on from."""
    return _checkpoints(layout).read(_template)
