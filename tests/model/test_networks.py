"""The bodies of networks of tables against a plain transcription, row by row; layers, and initial parameters."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from naive_networks import SLOPE, naive_apply, random_parameters

from bayesnde_cli.model import layers, networks
from bayesnde_cli.model.networks import DiscriminatorSpec, NetworkSpec
from bayesnde_cli.rng import generator

N_ROWS = 6
SPECS: list[networks.Spec] = [
    *(
        NetworkSpec(3, 2, ("mean", "raw"), n_classes, kind, width=8, depth=3)
        for kind in ("mlp", "residual")
        for n_classes in (0, 4)
    ),
    *(DiscriminatorSpec(3, n_classes, (8, 8, 6, 4)) for n_classes in (0, 2)),
]
every_network = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.n_classes}")


def _inputs(spec: networks.Spec, *leading: int) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Normal x and one-hot y in which every class occurs, float64."""
    x = generator(0, "x").standard_normal((*leading, spec.n_in))
    if spec.n_classes == 0:
        return tf.constant(x), None
    classes = np.arange(np.prod(leading, dtype=int)).reshape(leading) % spec.n_classes
    return tf.constant(x), tf.one_hot(classes, spec.n_classes, dtype=tf.float64)


@every_network
def test_the_forward_pass_is_that_of_the_naive_transcription(spec: networks.Spec) -> None:
    weights = random_parameters(networks.parameter_shapes(spec))
    x, y = _inputs(spec, N_ROWS)
    plain = {name: value.numpy() for name, value in weights.items()}
    labels = np.zeros((N_ROWS, 0)) if y is None else np.asarray(y)
    rows = [naive_apply(spec, plain, np.asarray(x)[row], labels[row]) for row in range(N_ROWS)]
    for found, *expected in zip(networks.apply(spec, weights, x, y), *rows, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)  # float64, some fifty roundings deep


@every_network
@pytest.mark.parametrize("leading", [(), (5, 3), (2, 3, 4), (0, 3)])
def test_any_leading_axes_give_what_flat_rows_give(spec: networks.Spec, leading: tuple[int, ...]) -> None:
    weights = random_parameters(networks.parameter_shapes(spec))
    x, y = _inputs(spec, *leading)
    flat_y = None if y is None else tf.reshape(y, [-1, spec.n_classes])
    flat = networks.apply(spec, weights, tf.reshape(x, [-1, spec.n_in]), flat_y)
    for found, expected in zip(networks.apply(spec, weights, x, y), flat, strict=True):
        assert found.shape == (*leading, expected.shape[1])
        np.testing.assert_allclose(np.reshape(found, expected.shape), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["mlp", "residual"])
def test_one_label_for_a_row_serves_all_its_chains(kind: networks.Kind) -> None:
    spec = NetworkSpec(3, 2, n_classes=4, kind=kind, width=8, depth=2)
    weights = random_parameters(networks.parameter_shapes(spec))
    x = tf.constant(generator(0, "x").standard_normal((4, 4, 3)))  # rows and chains of one length: the trap
    y = tf.eye(4, dtype=tf.float64)[:, None, :]  # (rows, 1, classes)
    (found,) = networks.apply(spec, weights, x, y)
    for row in range(4):
        (expected,) = networks.apply(spec, weights, x[row], tf.repeat(y[row], 4, axis=0))
        np.testing.assert_allclose(found[row], expected, rtol=1e-12, atol=1e-12)
    for wrong in ((x, y[:, 0]), (x[..., :2], y)):  # never reshaped
        with pytest.raises(ValueError, match="expected x of 3 columns and y with as many axes"):
            networks.apply(spec, weights, *wrong)


@every_network
def test_the_gradient_reaches_every_number_of_every_parameter(spec: networks.Spec) -> None:
    weights = networks.initial_parameters(spec, 0, "network")
    x, y = (None if part is None else tf.cast(part, tf.float32) for part in _inputs(spec, 64))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = networks.apply(spec, weights, x, y)
        # Cubes: a loss linear in the output would leave some parameters before a LayerNorm without a gradient.
        loss = tf.add_n([tf.reduce_sum(output**3) for output in outputs])
    for name, gradient in tape.gradient(loss, weights).items():
        assert np.all(np.isfinite(gradient) & (np.asarray(gradient) != 0)), name


@pytest.mark.parametrize("kind", ["mlp", "residual"])
def test_the_condition_joins_every_layer_but_the_second_of_a_block(kind: networks.Kind) -> None:
    specs = [NetworkSpec(3, 2, ("mean", "raw"), n_classes, kind, width=8, depth=2) for n_classes in (0, 4)]
    plain, conditional = map(networks.parameter_shapes, specs)
    wider = {name for name, shape in conditional.items() if shape == (plain[name][0] + 4, *plain[name][1:])}
    first = {"mlp": ["hidden1", "hidden2"], "residual": ["projection", "block1/dense1", "block2/dense1"]}[kind]
    assert wider == {f"{layer}/kernel" for layer in [*first, "mean", "raw"]}
    assert all(conditional[name] == plain[name] for name in plain if name not in wider)


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("leaky_relu", lambda x: np.where(x > 0, x, SLOPE * x)),
        ("elu", lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
        ("silu", lambda x: x / (1 + np.exp(-x))),
        ("tanh", np.tanh),
    ],
)
def test_every_activation_is_its_formula_and_changes_the_network(activation: str, formula: Callable) -> None:
    x = np.linspace(-5, 5, 41)
    spec = NetworkSpec(1, 1, width=1, depth=1, activation=activation)
    one = {name: tf.ones(shape, tf.float64) for name, shape in networks.parameter_shapes(spec).items()}
    np.testing.assert_allclose(networks.apply(spec, one, tf.constant(x[:, None]))[0][:, 0], formula(x + 1) + 1)


def test_initial_parameters_depend_on_seed_network_and_name_alone() -> None:
    def kernel(seed: int, network: str, name: str) -> np.ndarray:
        shapes = {"other/kernel": (2, 2), name: (1, 2)} if seed else {name: (1, 2)}
        return layers.initialise(shapes, seed, network)[name].numpy()

    assert [float(value).hex() for value in kernel(0, "decoder", "dense/kernel")[0]] == [
        "0x1.1164b20000000p-1",
        "-0x1.86fb8c0000000p-1",
    ]
    here = kernel(7, "decoder", "a/kernel")
    for address in ((8, "decoder", "a/kernel"), (7, "encoder", "a/kernel"), (7, "decoder", "b/kernel")):
        assert not np.any(here == kernel(*address))


def test_kernels_fill_the_glorot_interval_and_biases_are_zero_and_gains_one() -> None:
    first = layers.initialise({"a/kernel": (300, 200), "a/bias": (200,), "a/gain": (200,)}, 0, "decoder")
    limit = np.float32(np.sqrt(6 / 500))
    kernel = first["a/kernel"].numpy()
    # The largest of 60,000 uniform draws is below 0.999 of the limit with probability exp(-60).
    assert 0.999 * limit < kernel.max() <= limit
    assert -limit <= kernel.min() < -0.999 * limit
    # Five standard errors of the mean and of the variance (limit^2 / 3) of uniform draws.
    assert abs(kernel.mean()) < 5 * limit / np.sqrt(3 * kernel.size)
    assert abs(3 * kernel.var() / limit**2 - 1) < 5 * np.sqrt(0.8 / kernel.size)
    np.testing.assert_array_equal(first["a/bias"], np.zeros(200))
    np.testing.assert_array_equal(first["a/gain"], np.ones(200))
    everything = np.concatenate([np.ravel(value) for value in first.values()])
    assert float(layers.global_norm(first)) == pytest.approx(np.linalg.norm(everything), rel=1e-6)
