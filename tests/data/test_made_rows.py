"""The way back from the model's space: whole numbers, words, and the noise that they were made with."""

import numpy as np
import pyarrow as pa
import pytest

from bayesnde_cli.data.kinds import LARGEST_EXACT_INTEGER, Kind
from bayesnde_cli.data.made_rows import cell_type, cells, made_column, scaled_again
from bayesnde_cli.data.roles import Roles
from bayesnde_cli.data.scaling import (
    Noise,
    fit_categorical,
    fit_lattice,
    fit_minmax,
    fit_mixture,
    fit_none,
    fit_standard,
)
from bayesnde_cli.data.schema import Feature, Schema

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(4.0, 400).astype(float)
HEIGHTS = RNG.gamma(2.0, 3.0, 400)
WORDS = ("blue", "green", "red")
CODES = RNG.integers(0, 3, 400).astype(float)
NARROW, USUAL, WIDE = Noise(0.0, 0.5), Noise(), Noise(-1.5, 1.5)

FEATURES = [
    Feature("height", Kind.CONTINUOUS, (), fit_mixture(HEIGHTS, HEIGHTS[:50])),
    Feature("height", Kind.CONTINUOUS, (), fit_standard(HEIGHTS)),
    Feature("count", Kind.LATTICE, (), fit_lattice(COUNTS, COUNTS[:50], noise=USUAL)),
    Feature("count", Kind.LATTICE, (), fit_lattice(COUNTS, COUNTS[:50], noise=NARROW)),
    Feature("count", Kind.LATTICE, (), fit_standard(USUAL.add(COUNTS, RNG.random(400)), USUAL)),
    Feature("count", Kind.LATTICE, (), fit_mixture(WIDE.add(COUNTS, RNG.random(400)), COUNTS[:50], noise=WIDE)),
    Feature("colour", Kind.CATEGORICAL, WORDS, fit_categorical(CODES, CODES[:50], n_categories=3, noise=USUAL)),
    Feature("colour", Kind.CATEGORICAL, WORDS, fit_minmax(USUAL.add(CODES, RNG.random(400)), USUAL)),
]


def _made(feature: Feature, n: int = 500) -> tuple[np.ndarray, pa.Array]:
    u = feature.map.forward(HEIGHTS if feature.map.noise is None else COUNTS % 3,
                            None if feature.map.noise is None else RNG.random(400))[0]  # fmt: skip
    u = np.concatenate([u, RNG.normal(u.mean(), 2.0 * u.std(), n)])
    return u, cells(feature, made_column(feature, u))


@pytest.mark.parametrize("feature", FEATURES, ids=lambda item: f"{item.name}-{type(item.map).__name__}")
def test_cells_have_the_type_of_the_column(feature: Feature) -> None:
    _, made = _made(feature)
    assert made.type == cell_type(feature)
    assert made.null_count == 0
    if feature.kind is Kind.CATEGORICAL:
        assert set(made.to_pylist()) <= set(WORDS)
    elif feature.kind is Kind.CONTINUOUS:
        values = made.to_numpy()
        assert (values != np.rint(values)).mean() > 0.9  # a continuous column is not rounded


@pytest.mark.parametrize("feature", FEATURES, ids=lambda item: f"{item.name}-{type(item.map).__name__}")
def test_what_was_scaled_comes_back_with_its_noise(feature: Feature) -> None:
    value = HEIGHTS if feature.kind is Kind.CONTINUOUS else COUNTS % 3
    noise = feature.map.noise
    # Wider noise than the step reaches into the neighbours' cells: only its middle third is sure to come back.
    fraction = None if noise is None else RNG.uniform(0.01, 0.99, 400) / (3 if noise is WIDE else 1)
    if noise is WIDE:
        fraction = fraction + 1 / 3
    u, log_slope = feature.map.forward(value, fraction)
    column = made_column(feature, u)
    assert np.allclose(column.value, value, rtol=1e-9)
    again, log_jacobian = scaled_again(_schema(feature), [column])
    assert np.allclose(again[:, 0], u, atol=1e-5)
    assert np.allclose(log_jacobian, log_slope, atol=1e-5)


def test_a_lattice_without_noise_is_rounded_and_scored_where_it_then_is() -> None:
    feature = Feature("count", Kind.LATTICE, (), fit_none(None))
    column = made_column(feature, np.array([1.4, 2.6]))
    assert cells(feature, column).to_pylist() == [1, 3]
    assert scaled_again(_schema(feature), [column])[0].tolist() == [[1.0], [3.0]]


def test_values_beyond_all_bounds_stay_whole_numbers_and_categories() -> None:
    lattice = Feature("count", Kind.LATTICE, (), fit_none(USUAL))
    assert cells(lattice, made_column(lattice, np.array([1e30, -1e30]))).to_pylist() == [
        LARGEST_EXACT_INTEGER,
        -LARGEST_EXACT_INTEGER,
    ]
    colour = Feature("colour", Kind.CATEGORICAL, WORDS, fit_none(None))
    assert cells(colour, made_column(colour, np.array([-5.0, 1.2, 9.0]))).to_pylist() == ["blue", "green", "red"]


def _schema(feature: Feature) -> Schema:
    return Schema(Roles(features=(feature.name,)), (feature,), (), False, 0)
