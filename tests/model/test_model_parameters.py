"""Parameters: where they start, how they are stored, what they add up to."""

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.model import discriminator, networks, parameters
from bayesnde_cli.model.decoder import decoder_spec

SHAPES = {"dense/kernel": (300, 200), "dense/bias": (200,), "norm/gain": (200,)}


def _small() -> dict[str, tf.Tensor]:
    return parameters.initial({"dense/kernel": (2, 3), "dense/bias": (3,), "norm/gain": (3,)}, 1, "decoder")


def test_first_parameters_depend_on_seed_network_and_name_alone() -> None:
    alone = parameters.initial({"dense/kernel": (300, 200)}, 7, "decoder")["dense/kernel"]
    among_others = parameters.initial({"other/kernel": (2, 2)} | SHAPES, 7, "decoder")["dense/kernel"]
    np.testing.assert_array_equal(alone, among_others)


@pytest.mark.parametrize(("seed", "network", "name"), [(8, "decoder", "a"), (7, "encoder", "a"), (7, "decoder", "b")])
def test_another_seed_network_or_name_starts_elsewhere(seed: int, network: str, name: str) -> None:
    here = parameters.initial({"a/kernel": (20, 20)}, 7, "decoder")["a/kernel"]
    there = parameters.initial({f"{name}/kernel": (20, 20)}, seed, network)[f"{name}/kernel"]
    assert not np.any(np.asarray(here) == np.asarray(there))


def test_first_parameters_are_these_numbers_on_every_machine() -> None:
    kernel = parameters.initial({"dense/kernel": (1, 2)}, 0, "decoder")["dense/kernel"]
    assert [float(value).hex() for value in kernel[0]] == ["0x1.1164b20000000p-1", "-0x1.86fb8c0000000p-1"]


def test_kernels_fill_the_glorot_interval_and_biases_are_zero_and_gains_one() -> None:
    first = parameters.initial(SHAPES, 0, "decoder")
    limit = np.float32(np.sqrt(6 / 500))
    kernel = np.asarray(first["dense/kernel"])
    assert np.abs(kernel).max() <= limit
    # The largest of 60,000 uniform draws is below 0.999 of the limit with probability exp(-60).
    assert kernel.max() > 0.999 * limit
    assert kernel.min() < -0.999 * limit
    # Five standard errors of the mean and of the variance (limit^2 / 3) of uniform draws.
    assert abs(kernel.mean()) < 5 * limit / np.sqrt(3 * kernel.size)
    assert abs(3 * kernel.var() / limit**2 - 1) < 5 * np.sqrt(0.8 / kernel.size)
    np.testing.assert_array_equal(first["dense/bias"], np.zeros(200))
    np.testing.assert_array_equal(first["norm/gain"], np.ones(200))
    assert {value.dtype for value in first.values()} == {tf.float32}


def test_the_order_is_that_of_the_network_from_input_to_output() -> None:
    spec = networks.NetworkSpec(3, 2, ("mean", "raw"), kind="residual", width=4, depth=1)
    assert list(networks.initial_parameters(spec, 0, "g")) == [
        "projection/kernel",
        "projection/bias",
        "block1/dense1/kernel",
        "block1/dense1/bias",
        "block1/norm1/gain",
        "block1/norm1/bias",
        "block1/dense2/kernel",
        "block1/dense2/bias",
        "block1/norm2/gain",
        "block1/norm2/bias",
        "mean/kernel",
        "mean/bias",
        "raw/kernel",
        "raw/bias",
    ]


def test_the_count_is_that_of_the_formula() -> None:
    mlp = networks.initial_parameters(decoder_spec(2, 3), 0, "decoder")
    assert parameters.count(mlp) == (2 + 1) * 256 + 4 * 257 * 256 + 2 * 257 * 3
    residual = networks.initial_parameters(decoder_spec(8, 17, n_classes=4), 0, "decoder")
    block = (256 + 4 + 1) * 256 + 257 * 256 + 4 * 256
    assert parameters.count(residual) == (8 + 4 + 1) * 256 + 5 * block + 2 * (256 + 4 + 1) * 17
    critic = discriminator.initial_parameters(discriminator.DiscriminatorSpec(17, 4), 0, "critic")
    assert parameters.count(critic) == 22 * 256 + 257 * 256 + 257 * 128 + 129 * 64 + 65


def test_the_global_norm_is_the_length_of_everything_laid_end_to_end() -> None:
    values = _small()
    everything = np.concatenate([np.ravel(value) for value in values.values()])
    # Float32: a handful of roundings of 6e-8.
    assert float(parameters.global_norm(values)) == pytest.approx(np.linalg.norm(everything), rel=1e-6)


def test_parameters_come_back_from_numpy_bit_for_bit_and_in_order() -> None:
    values = _small()
    arrays = parameters.to_numpy(values)
    assert all(type(array) is np.ndarray and array.dtype == np.float32 for array in arrays.values())
    shuffled = dict(reversed(arrays.items()))
    back = parameters.from_numpy(shuffled, {name: array.shape for name, array in arrays.items()})
    assert list(back) == list(values)
    for name, value in values.items():
        assert np.asarray(back[name]).tobytes() == np.asarray(value).tobytes()


def test_arrays_of_another_network_are_refused_with_every_difference() -> None:
    arrays = {"a/kernel": np.zeros((2, 3), np.float32), "b/bias": np.zeros(3, np.float64), "c/bias": np.zeros(1)}
    with pytest.raises(BadArtifact) as refusal:
        parameters.from_numpy(arrays, {"a/kernel": (2, 4), "b/bias": (3,), "d/bias": (1,)})
    assert str(refusal.value) == (
        "error: the stored weights do not fit the network\n"
        "  a/kernel: float32 (2, 3), expected float32 (2, 4)\n"
        "  b/bias: float64 (3), expected float32 (3)\n"
        "  missing: d/bias\n"
        "  unknown: c/bias\n"
        "hint: use the settings with which they were trained, or train again"
    )
