"""Splits: disjoint, complete, of the right sizes, stratified, and the paper's conventions to the row."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesnde_cli.errors import BadInput
from bayesnde_cli.tables import splits

SHARES = (0.81, 0.09, 0.10)


def _sizes(split: np.ndarray) -> tuple[int, ...]:
    return tuple(int(np.sum(split == code)) for code in range(3))


@given(n_rows=st.integers(50, 500), seed=st.integers(0, 2**32 - 1), n_classes=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_every_row_is_in_one_split_and_every_class_in_every_split(n_rows: int, seed: int, n_classes: int) -> None:
    strata = np.arange(n_rows) % n_classes
    split = splits.split_by_address(np.arange(n_rows), SHARES, seed, strata)
    assert sum(_sizes(split)) == n_rows
    for stratum in range(n_classes):
        members = split[strata == stratum]
        assert min(_sizes(members)) >= 1
        assert _sizes(members) == splits.share_sizes(len(members), SHARES)


@pytest.mark.parametrize(
    ("n_rows", "shares", "sizes"),
    [
        (70_000, (0.71428, 0.14286, 0.14286), (50_000, 10_000, 10_000)),
        (20_000, SHARES, (16_200, 1_800, 2_000)),
        (50, SHARES, (41, 4, 5)),
        (50, (0.998, 0.001, 0.001), (48, 1, 1)),
    ],
)
def test_the_order_of_the_file_is_training_then_validation_then_test(
    n_rows: int, shares: tuple[float, ...], sizes: tuple[int, ...]
) -> None:
    split = splits.split_by_order(n_rows, shares)
    assert _sizes(split) == sizes
    assert (np.diff(split) >= 0).all()
    assert _sizes(splits.split_by_address(np.arange(n_rows), shares, 0)) == sizes


def test_the_order_of_two_rows_depends_on_their_own_addresses_alone() -> None:
    # Dropping rows moves the borders between splits, never the order: what trained in the longer list of the
    # first rows and still ranks low enough trains again.
    everything = splits.split_by_address(np.arange(1000), SHARES, 3)
    without_some = splits.split_by_address(np.arange(5, 1000), SHARES, 3)
    assert np.mean(everything[5:] == without_some) > 0.98
    assert np.mean(everything == splits.split_by_address(np.arange(1000), SHARES, 4)) < 0.9


@pytest.mark.parametrize(
    ("n_rows", "sizes"), [(45_211, (36_621, 4_069, 4_521)), (5_875, (4_760, 528, 587)), (6_870, (5_565, 618, 687))]
)
def test_the_tail_split_has_the_paper_s_sizes_and_order(n_rows: int, sizes: tuple[int, ...]) -> None:
    split = splits.split_by_tail(n_rows, SHARES, 42)
    assert _sizes(split) == sizes
    shuffled = np.arange(n_rows)
    np.random.RandomState(42).shuffle(shuffled)
    assert np.all(split[shuffled[-sizes[2] :]] == splits.TEST)
    assert np.all(split[shuffled[: sizes[0]]] == splits.TRAIN)


@pytest.mark.parametrize(
    ("n_rows", "sizes"), [(846, (684, 77, 85)), (10_992, (8_902, 990, 1_100)), (14_976, (12_130, 1_348, 1_498))]
)
def test_train_test_split_has_the_paper_s_sizes(n_rows: int, sizes: tuple[int, ...]) -> None:
    split = splits.split_by_train_test_split(n_rows, SHARES, (42, 1051), np.arange(n_rows) % 4)
    assert _sizes(split) == sizes


def test_words_name_splits_and_an_unknown_one_is_refused_with_its_row() -> None:
    words = pa.array(["train", "Validation", " test ", "val"])
    assert splits.split_by_words(words, np.arange(4), "s").tolist() == [0, 1, 2, 1]
    with pytest.raises(BadInput, match="column 's' names no split in row 10\n  cell: 'tset'"):
        splits.split_by_words(pa.array(["train", "tset"]), np.array([3, 9]), "s")


@pytest.mark.parametrize("shares", [(0.02, 0.49, 0.49), (0.98, 0.01, 0.01), (0.2, 0.4, 0.4)])
def test_no_split_of_a_class_is_empty_whatever_the_shares(shares: tuple[float, ...]) -> None:
    for n_rows in range(3, 60):
        sizes = splits.share_sizes(n_rows, shares)
        assert sum(sizes) == n_rows
        assert min(sizes) >= 1


def test_a_class_of_fewer_than_ten_rows_is_refused() -> None:
    with pytest.raises(BadInput, match="has a class too small to split"):
        splits.check_strata(np.array([0] * 50 + [1] * 9), ["a", "b"], "y")
    splits.check_strata(np.array([0] * 50 + [1] * 10), ["a", "b"], "y")


def test_fewer_test_rows_are_a_part_of_the_same_ones_and_no_other_row_moves() -> None:
    row_ids = np.arange(1000)
    whole = splits.split_by_address(row_ids, SHARES, seed=3)
    fewer, fewest = (splits.limit_rows(whole, row_ids, splits.TEST, most, seed=3) for most in (40, 10))
    assert _sizes(fewer) == (*_sizes(whole)[:2], 40)
    assert np.all(fewer[whole != splits.TEST] == whole[whole != splits.TEST])
    assert np.all(fewer[fewest == splits.TEST] == splits.TEST)  # more of them begin with the fewer ones
    assert np.sum(fewer == splits.LEFT_OUT) == _sizes(whole)[2] - 40
    np.testing.assert_array_equal(splits.limit_rows(whole, row_ids, splits.TEST, 1000, seed=3), whole)
    assert np.any(splits.limit_rows(whole, row_ids, splits.TEST, 40, seed=4) != fewer)


def test_the_first_rows_of_a_split_may_be_asked_for() -> None:
    whole = splits.split_by_order(100, (0.8, 0.1, 0.1))
    fewer = splits.limit_rows(whole, np.arange(100), splits.TRAIN, 5, seed=None)
    assert np.flatnonzero(fewer == splits.TRAIN).tolist() == [0, 1, 2, 3, 4]
    assert np.all(fewer[80:] == whole[80:])
    by_number = splits.limit_rows(whole, np.arange(100), splits.TRAIN, 5, seed=3)
    assert np.flatnonzero(by_number == splits.TRAIN).tolist() != [0, 1, 2, 3, 4]


def test_copies_are_in_one_split_but_frequent_rows_are_not() -> None:
    ids = np.arange(1000)
    copies = ids.copy()
    copies[500:700] = ids[:200]  # 200 rows twice
    copies[700:800] = 5  # and one of them a hundred times more
    split = splits.split_by_address(ids, SHARES, 0, None, copies)
    assert abs(_sizes(split)[0] - 810) <= 2
    pairs = np.array([row for row in range(200) if row != 5])
    np.testing.assert_array_equal(split[500 + pairs], split[pairs])
    alone = splits.split_by_address(ids, SHARES, 0)
    assert (alone[500 + pairs] != alone[pairs]).any()  # the control
    assert len(set(split[700:800].tolist())) == 3
    np.testing.assert_array_equal(splits.split_by_address(ids, SHARES, 0, None, ids), alone)


@pytest.mark.parametrize("seed", range(20))
def test_copies_empty_no_split_of_a_class(seed: int) -> None:
    strata = np.repeat([0, 1], [190, 10])
    copies = np.arange(200)
    copies[1::2] = copies[::2]  # pairs
    split = splits.split_by_address(np.arange(200), SHARES, seed, strata, copies)
    for stratum in (0, 1):
        assert set(split[strata == stratum].tolist()) == {0, 1, 2}
    assert np.mean(split[::2] == split[1::2]) > 0.97
