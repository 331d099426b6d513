"""What a loop that trains decoder and encoder together carries from round to round."""

from typing import NamedTuple

import tensorflow as tf

from bayesnde_cli.model.parameters import Parameters
from bayesnde_cli.training.optimizers import AdamState, adam_start


class AutoencoderState(NamedTuple):
    """Everything that a round changes."""

    parameters: dict[str, tf.Tensor]  # of decoder and encoder, under `decoder/` and `encoder/`
    optimizer: AdamState
    average: dict[str, tf.Tensor]  # running mean of the parameters
    round: tf.Tensor  # int32 scalar, rounds done


def start(parameters: Parameters) -> AutoencoderState:
    """The state before the first round, from given weights."""
    return AutoencoderState(dict(parameters), adam_start(parameters), dict(parameters), tf.constant(0, tf.int32))
