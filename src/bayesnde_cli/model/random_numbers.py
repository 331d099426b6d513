"""Random numbers by address: the same seed (two int32) gives the same numbers.

Compiled by XLA for a CPU, TensorFlow's own choice of generator takes longer for its numbers than a network of ours for
its products: 3 million normal ones took 2.0 s, those of threefry (Salmon et al. 2011) 0.06 s. Outside of XLA there is
no threefry, so the numbers of a function depend on whether it is compiled.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def normal(shape: Sequence[int], seed: tf.Tensor, **options: Any) -> tf.Tensor:
    """Standard normal numbers."""
    return tf.random.stateless_normal(shape, seed, alg=_generator(), **options)


def uniform(shape: Sequence[int], seed: tf.Tensor, **options: Any) -> tf.Tensor:
    """Uniform numbers: on [0, 1), or from `minval` to `maxval`."""
    return tf.random.stateless_uniform(shape, seed, alg=_generator(), **options)


def _generator() -> str:
    """Every graph of ours is compiled."""
    return "auto_select" if tf.executing_eagerly() else "threefry"
