"""Rounds are functions of their arguments, to the last bit."""

import numpy as np
import tensorflow as tf

from bayesnde_cli.training.loop import RunRound
from bayesnde_cli.training.objectives import Data, Losses, State


def have_same_bits(one: State, other: State) -> bool:
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
    return all(np.array_equal(left.numpy(), right.numpy()) for left, right in pairs)


def check_bits(run: RunRound, begin: State, data: Data, seed: tf.Tensor) -> tuple[State, Losses]:
    """Two rounds give the same bits when they are resumed, and others under another seed. -> the state between them."""
    half, _ = run(begin, data, seed)
    whole, losses = run(half, data, seed)
    # As if saved and read back: through NumPy, leaf by leaf.
    leaves = [tf.constant(leaf.numpy()) for leaf in tf.nest.flatten(half)]
    resumed, losses_again = run(tf.nest.pack_sequence_as(begin, leaves), data, seed)
    assert have_same_bits(whole, resumed)
    assert all(losses[name].numpy() == losses_again[name].numpy() for name in losses)
    other, _ = run(begin, data, seed + 1)
    assert not np.array_equal(other.parameters["decoder/mean/kernel"], half.parameters["decoder/mean/kernel"])
    return half, losses
