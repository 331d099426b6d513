"""The discriminators against a plain transcription, row by row."""

import numpy as np
import pytest
import tensorflow as tf
from naive_networks import naive_discriminator, random_parameters

from bayesnde_cli.model import discriminator
from bayesnde_cli.model.discriminator import DiscriminatorSpec
from bayesnde_cli.model.parameters import to_numpy
from bayesnde_cli.rng import generator

SPECS = [DiscriminatorSpec(3, n_classes, (8, 8, 6, 4)) for n_classes in (0, 2)]
every_discriminator = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.n_classes}-classes")


def _inputs(spec: DiscriminatorSpec, *leading: int) -> tuple[tf.Tensor, tf.Tensor | None]:
    x = tf.constant(generator(0, "x").standard_normal((*leading, spec.n_in)))
    classes = np.arange(np.prod(leading)).reshape(leading) % 2
    return x, tf.one_hot(classes, 2, dtype=tf.float64) if spec.n_classes else None


@every_discriminator
def test_the_score_is_that_of_the_naive_transcription(spec: DiscriminatorSpec) -> None:
    weights = random_parameters(discriminator.parameter_shapes(spec))
    x, y = _inputs(spec, 5)
    found = discriminator.apply(spec, weights, x, y)
    labels = np.zeros((5, 0)) if y is None else np.asarray(y)
    expected = [naive_discriminator(to_numpy(weights), 4, np.asarray(x)[row], labels[row]) for row in range(5)]
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)  # float64


@every_discriminator
def test_leading_axes_and_compilation_change_nothing(spec: DiscriminatorSpec) -> None:
    weights = random_parameters(discriminator.parameter_shapes(spec))
    x, y = _inputs(spec, 3, 4)
    flat = discriminator.apply(spec, weights, tf.reshape(x, [12, 3]), None if y is None else tf.reshape(y, [12, 2]))
    found = tf.function(lambda x: discriminator.apply(spec, weights, x, y), jit_compile=True)(x)
    assert found.shape == (3, 4)
    np.testing.assert_allclose(tf.reshape(found, [12]), flat, rtol=1e-11, atol=1e-11)


@every_discriminator
def test_the_gradient_reaches_every_number_of_every_parameter(spec: DiscriminatorSpec) -> None:
    weights = discriminator.initial_parameters(spec, 0, "critic")
    x, y = (None if part is None else tf.cast(part, tf.float32) for part in _inputs(spec, 64))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(discriminator.apply(spec, weights, x, y) ** 2)
    for name, gradient in tape.gradient(loss, weights).items():
        assert np.all(np.isfinite(gradient) & (np.asarray(gradient) != 0)), name


def test_the_paper_s_widths_are_the_default() -> None:
    shapes = discriminator.parameter_shapes(DiscriminatorSpec(17, 4))
    kernels = [shape for name, shape in shapes.items() if name.endswith("kernel")]
    assert kernels == [(21, 256), (256, 256), (256, 128), (128, 64), (64, 1)]


def test_a_spec_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="expected an activation among"):
        DiscriminatorSpec(3, activation="cosine")
    with pytest.raises(ValueError, match="expected sizes of at least 1"):
        DiscriminatorSpec(3, widths=(8, 0))
