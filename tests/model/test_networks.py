"""The bodies of decoder and encoder against a plain transcription, row by row."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from naive_networks import SLOPE, naive_dense, naive_layer_norm, naive_mlp, naive_residual, random_parameters

from bayesnde_cli.model import layers, networks
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.model.parameters import to_numpy
from bayesnde_cli.rng import generator

N_ROWS = 6
SPECS = [
    NetworkSpec(3, 2, ("mean", "raw"), n_classes, kind, width=8, depth=3)
    for kind in ("mlp", "residual")
    for n_classes in (0, 4)
]
every_network = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.n_classes}")


def _inputs(spec: NetworkSpec, *leading: int) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Normal x and one-hot y in which every class occurs, float64."""
    x = generator(0, "x").standard_normal((*leading, spec.n_in))
    if spec.n_classes == 0:
        return tf.constant(x), None
    classes = np.arange(np.prod(leading, dtype=int)).reshape(leading) % spec.n_classes
    return tf.constant(x), tf.one_hot(classes, spec.n_classes, dtype=tf.float64)


def _naive(spec: NetworkSpec, weights: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray | None) -> list[np.ndarray]:
    trunk = {"mlp": naive_mlp, "residual": naive_residual}[spec.kind]
    outputs: list[list[np.ndarray]] = [[] for _ in spec.heads]
    for row in range(len(x)):
        y_row = np.zeros(0) if y is None else y[row]
        features = trunk(weights, spec.depth, x[row], y_row)
        for head, output in zip(spec.heads, outputs, strict=True):
            output.append(naive_dense(weights, head, features, y_row))
    return [np.array(output) for output in outputs]


@every_network
def test_the_forward_pass_is_that_of_the_naive_transcription(spec: NetworkSpec) -> None:
    weights = random_parameters(networks.parameter_shapes(spec))
    x, y = _inputs(spec, N_ROWS)
    expected = _naive(spec, to_numpy(weights), np.asarray(x), None if y is None else np.asarray(y))
    for found, naive in zip(networks.apply(spec, weights, x, y), expected, strict=True):
        assert found.shape == (N_ROWS, spec.n_out)
        np.testing.assert_allclose(found, naive, rtol=1e-11, atol=1e-11)  # float64, some fifty roundings deep


@every_network
def test_float32_is_the_same_network_up_to_rounding(spec: NetworkSpec) -> None:
    weights = random_parameters(networks.parameter_shapes(spec))
    x, y = _inputs(spec, N_ROWS)
    exact = networks.apply(spec, weights, x, y)
    rounded = networks.apply(
        spec,
        {name: tf.cast(value, tf.float32) for name, value in weights.items()},
        tf.cast(x, tf.float32),
        None if y is None else tf.cast(y, tf.float32),
    )
    for found, expected in zip(rounded, exact, strict=True):
        assert found.dtype == tf.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@every_network
@pytest.mark.parametrize("leading", [(), (1,), (5, 3), (2, 3, 4), (0,), (0, 3)])
def test_any_leading_axes_give_what_flat_rows_give(spec: NetworkSpec, leading: tuple[int, ...]) -> None:
    weights = random_parameters(networks.parameter_shapes(spec))
    x, y = _inputs(spec, *leading)
    flat_y = None if y is None else tf.reshape(y, [-1, spec.n_classes])
    flat = networks.apply(spec, weights, tf.reshape(x, [-1, spec.n_in]), flat_y)
    for found, expected in zip(networks.apply(spec, weights, x, y), flat, strict=True):
        assert found.shape == (*leading, spec.n_out)
        np.testing.assert_allclose(np.reshape(found, (-1, spec.n_out)), expected, rtol=1e-12, atol=1e-12)


@every_network
def test_lengths_known_to_the_graph_stay_known(spec: NetworkSpec) -> None:
    weights = random_parameters(networks.parameter_shapes(spec))
    x, y = _inputs(spec, 5, 3)

    @tf.function(input_signature=[tf.TensorSpec((None, 3, spec.n_in), tf.float64)])
    def outputs(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found = networks.apply(spec, weights, x, None if y is None else y[:1, :1])
        assert [output.shape.as_list() for output in found] == [[None, 3, spec.n_out]] * 2
        return found

    assert outputs(x)[0].shape == (5, 3, spec.n_out)


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
    with pytest.raises(ValueError, match=r"with the axes of x \(4, 4, 3\), got shape \(4, 4\)"):
        networks.apply(spec, weights, x, y[:, 0])


@every_network
def test_the_gradient_reaches_every_number_of_every_parameter(spec: NetworkSpec) -> None:
    weights = networks.initial_parameters(spec, 0, "network")
    x, y = (None if part is None else tf.cast(part, tf.float32) for part in _inputs(spec, 64))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = networks.apply(spec, weights, x, y)
        # Cubes: a loss linear in the output would leave some parameters before a LayerNorm without a gradient.
        loss = tf.add_n([tf.reduce_sum(output**3) for output in outputs])
    for name, gradient in tape.gradient(loss, weights).items():
        assert gradient.shape == weights[name].shape
        assert np.all(np.isfinite(gradient)), name
        assert np.all(np.asarray(gradient) != 0), name


@pytest.mark.parametrize("kind", ["mlp", "residual"])
def test_a_condition_joins_every_place_it_should(kind: networks.Kind) -> None:
    spec = NetworkSpec(3, 2, ("mean", "raw"), 4, kind, width=8, depth=2)
    plain = networks.parameter_shapes(replace(spec, n_classes=0))
    wider = {
        name
        for name, shape in networks.parameter_shapes(spec).items()
        if shape != plain[name] and shape == (plain[name][0] + 4, plain[name][1])
    }
    first = {"mlp": ["hidden1", "hidden2"], "residual": ["projection", "block1/dense1", "block2/dense1"]}[kind]
    assert wider == {f"{layer}/kernel" for layer in [*first, "mean", "raw"]}


@every_network
def test_the_compiled_network_gives_what_the_eager_one_gives(spec: NetworkSpec) -> None:
    weights = networks.initial_parameters(spec, 0, "network")
    x, y = (None if part is None else tf.cast(part, tf.float32) for part in _inputs(spec, 7, 2))
    compiled = tf.function(lambda weights, x, y: networks.apply(spec, weights, x, y), jit_compile=True)
    for found, expected in zip(compiled(weights, x, y), networks.apply(spec, weights, x, y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)  # float32; sums in another order


def test_training_steps_run_inside_one_compiled_loop() -> None:
    spec = NetworkSpec(3, 2, kind="residual", width=8, depth=2)
    first = networks.initial_parameters(spec, 0, "network")
    x = tf.cast(_inputs(spec, 32)[0], tf.float32)
    target = x[:, :2] ** 2

    def loss(weights: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.reduce_mean((networks.apply(spec, weights, x)[0] - target) ** 2)

    def step(weights: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value = loss(weights)
        gradients = tape.gradient(value, weights)
        return {name: weights[name] - 0.01 * gradients[name] for name in weights}

    @tf.function(jit_compile=True)
    def many_steps(weights: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return tf.while_loop(lambda i, _: i < 20, lambda i, weights: (i + 1, step(weights)), (0, weights))[1]

    last = many_steps(first)
    by_hand = first
    for _ in range(20):
        by_hand = step(by_hand)
    assert list(last) == list(first)
    for name, value in last.items():
        np.testing.assert_allclose(value, by_hand[name], rtol=1e-3, atol=1e-5)
    assert loss(last) < 0.9 * loss(first)


def test_layer_norm_is_that_of_the_transcription_and_keeps_a_constant_row_finite() -> None:
    weights = random_parameters(layers.layer_norm_shapes("norm", 8))
    x = np.concatenate([generator(0, "x").standard_normal((3, 8)) * [[1], [1e-3], [1e3]], np.full((1, 8), 5.0)])
    found = layers.layer_norm(weights, "norm", tf.constant(x))
    for row in range(4):
        expected = naive_layer_norm(to_numpy(weights), "norm", x[row])
        np.testing.assert_allclose(found[row], expected, rtol=1e-11, atol=1e-11)
    np.testing.assert_array_equal(found[3], weights["norm/bias"])


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
    np.testing.assert_allclose(layers.ACTIVATIONS[activation](tf.constant(x)), formula(x), rtol=1e-12, atol=1e-12)
    spec = NetworkSpec(1, 1, width=1, depth=1, activation=activation)
    one = {name: tf.ones(shape, tf.float64) for name, shape in networks.parameter_shapes(spec).items()}
    np.testing.assert_allclose(networks.apply(spec, one, tf.constant(x[:, None]))[0][:, 0], formula(x + 1) + 1)


def test_the_regime_changes_after_ten_columns() -> None:
    assert [networks.regime(p) for p in (1, 10, 11, 784)] == ["mlp", "mlp", "residual", "residual"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "conv"}, "expected a kind among mlp, residual, to_image, from_image, got 'conv'"),
        ({"activation": "cosine"}, "expected an activation among leaky_relu, elu, silu, tanh, got 'cosine'"),
        ({"width": 0}, "expected sizes of at least 1, got NetworkSpec"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NetworkSpec(**({"n_in": 3, "n_out": 2} | changes))


def test_inputs_that_do_not_fit_are_refused_and_never_reshaped() -> None:
    spec = NetworkSpec(3, 2, width=4, depth=1)
    weights = networks.initial_parameters(spec, 0, "network")
    with pytest.raises(ValueError, match=r"expected an input of 3 columns, got shape \(3, 2\)"):
        networks.apply(spec, weights, tf.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"expected 0 classes, got y of shape \(5, 4\)"):
        networks.apply(spec, weights, tf.zeros((5, 3)), tf.zeros((5, 4)))
    with pytest.raises(ValueError, match="expected 4 classes, got no y"):
        networks.apply(replace(spec, n_classes=4), weights, tf.zeros((5, 3)))
