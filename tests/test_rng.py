"""Seeds are addresses: fixed values, no collisions between neighbours, uniform numbers."""

import numpy as np
import pytest
from scipy import stats

from bayesnde_cli.rng import bits_at, derive_seed, generator, uniform_at


def test_a_seed_depends_on_nothing_but_its_address() -> None:
    # Fixed for ever: a change here changes every run that was ever made.
    assert derive_seed(0, "posterior", "block", 12) == 7803671329567331568
    assert derive_seed(0, "prepare", "split") == 1948082769079932437


@pytest.mark.parametrize(
    ("one", "other"), [((0, "a", 1), (0, "a", "1")), ((0, "ab", "c"), (0, "a", "bc")), ((0, "a"), (1, "a"))]
)
def test_neighbouring_addresses_have_different_seeds(one: tuple, other: tuple) -> None:
    assert derive_seed(*one) != derive_seed(*other)


def test_a_generator_gives_the_same_numbers_at_the_same_address() -> None:
    assert np.array_equal(generator(3, "x", 1).normal(size=5), generator(3, "x", 1).normal(size=5))
    assert not np.array_equal(generator(3, "x", 1).normal(size=5), generator(3, "x", 2).normal(size=5))


def test_bits_at_an_index_do_not_depend_on_the_other_indexes() -> None:
    index = np.arange(1000)
    assert np.array_equal(bits_at(7, index)[500:], bits_at(7, index[500:]))
    assert len(np.unique(bits_at(7, np.arange(100_000)))) == 100_000


def test_numbers_at_indexes_are_uniform_and_inside_the_open_interval() -> None:
    numbers = uniform_at(5, np.arange(200_000))
    assert numbers.min() > 0.0
    assert numbers.max() < 1.0
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01
    # Two columns share no pattern.
    assert abs(np.corrcoef(numbers, uniform_at(6, np.arange(200_000)))[0, 1]) < 0.01
    # Negative control: a sequence that is not uniform fails the same check.
    assert stats.kstest(numbers**1.05, "uniform").pvalue < 1e-6
