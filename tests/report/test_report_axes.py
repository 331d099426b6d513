"""Ticks, bins, numbers and frames against values worked out by hand."""

import numpy as np
import pytest

from bayesnde_cli.report.binning import bin_shares, edges_through, n_bins, robust_range, shown_range, thinned, widened
from bayesnde_cli.report.frame import Frame, axis, log_axis, named_axis
from bayesnde_cli.report.numerals import nats, numeral, share, with_error
from bayesnde_cli.report.ticks import log_labels, log_ticks, nice_ticks, tick_labels
from bayesnde_cli.stages.reporting import duration

NBSP = "\u00a0"


@pytest.mark.parametrize(
    ("low", "high", "ticks", "labels"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10], ["0", "2", "4", "6", "8", "10"]),
        (-7.8, -2.1, [-6, -4], ["-6", "-4"]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1], ["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
        (1.0, 1.06, [1.0, 1.02, 1.04, 1.06], ["1.00", "1.02", "1.04", "1.06"]),
        (0, 25000, [0, 5000, 10000, 15000, 20000, 25000], ["0", "5,000", "10,000", "15,000", "20,000", "25,000"]),
        (0, 4e7, [0, 1e7, 2e7, 3e7, 4e7], ["0", "1e7", "2e7", "3e7", "4e7"]),
        (
            0.99911,
            0.99915,
            [0.99911, 0.99912, 0.99913, 0.99914, 0.99915],
            ["0.99911", "0.99912", "0.99913", "0.99914", "0.99915"],
        ),
        (0, 4e-6, [0, 1e-6, 2e-6, 3e-6, 4e-6], ["0", "1e-6", "2e-6", "3e-6", "4e-6"]),
    ],
)
def test_ticks_are_round_numbers_inside_the_range(
    low: float, high: float, ticks: list[float], labels: list[str]
) -> None:
    found = nice_ticks(low, high)
    assert found == pytest.approx(ticks)
    assert tick_labels(found) == labels


def test_ticks_of_a_logarithmic_axis() -> None:
    assert log_labels(log_ticks(-2.4, -1.2)) == ["0.005", "0.01", "0.02", "0.05"]
    assert log_labels(log_ticks(0, 3)) == ["1", "10", "100", "1,000"]
    assert log_labels(log_ticks(-6, 6)) == ["1e-6", "0.0001", "0.01", "1", "100", "1e4", "1e6"]


def test_a_histogram_counts_shares_and_puts_what_is_outside_into_the_end_bins() -> None:
    edges = np.array([0.0, 1.0, 2.0, 3.0])
    values = np.array([-9.0, 0.5, 1.5, 1.6, 99.0, np.nan, np.inf, 1.0])
    # Of the six finite ones: -9 and 0.5; 1.5, 1.6 and 1.0; 99.
    assert bin_shares(values, edges) == pytest.approx([2 / 6, 3 / 6, 1 / 6])
    assert bin_shares(np.empty(0), edges) == pytest.approx([0, 0, 0])


def test_the_number_of_bins_follows_rice_within_limits() -> None:
    assert [n_bins(n) for n in (0, 27, 1000, 10**9)] == [8, 8, 20, 40]


def test_one_wild_row_does_not_stretch_a_range() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 1e9, np.nan])
    # Quartiles of the six finite ones are 1.25 and 3.75: nothing beyond 3.75 + 4 * 2.5 counts.
    assert robust_range(values) == (0.0, 4.0)
    assert robust_range(np.array([2.0, 2.0])) == pytest.approx((1.999, 2.001))
    assert robust_range(np.array([np.nan])) == (0.0, 1.0)
    assert widened(0.0, 10.0, by=0.1) == (-1.0, 11.0)


def test_a_column_is_shown_where_rows_and_nearly_all_generated_rows_are() -> None:
    generated = np.concatenate([np.linspace(-1, 6, 1001), [1e9]])
    low, high = shown_range(np.array([0.0, 1.0, 2.0]), generated)
    assert low == pytest.approx(-1, abs=0.02)
    assert high == pytest.approx(6, abs=0.02)


def test_thinning_is_even_and_keeps_small_tables_whole() -> None:
    assert thinned(3, 10).tolist() == [0, 1, 2]
    assert thinned(101, 5).tolist() == [0, 25, 50, 75, 100]


def test_numbers_as_people_read_them() -> None:
    assert [numeral(x) for x in (-4.35211, 12345.6, 3.2e-7, 2e7, 0.0, None, float("nan"))] == [
        "-4.352", "12,346", "3.200e-7", "2.000e+7", "0", "–", "–",
    ]  # fmt: skip
    assert nats(-1234.5) == "-1,234.500"
    assert with_error(-4.0, 0.05) == f"-4.000 ±{NBSP}0.100"
    assert with_error(-4.0, None) == "-4.000"
    assert [share(a, b) for a, b in ((27, 27), (9999, 10000), (999999, 1000000), (1, 3), (0, 0))] == [
        f"100{NBSP}%", f"99.99{NBSP}%", f"99.99{NBSP}%", f"33.3{NBSP}%", "–",
    ]  # fmt: skip
    assert [duration(s) for s in (4.4, 185, 7620)] == ["4 s", "3 min 5 s", "2 h 7 min"]


def test_a_frame_puts_values_where_they_belong_and_holds_back_what_is_outside() -> None:
    frame = Frame(axis(0, 10), axis(0, 1), width=120, height=70, left=10, right=10, top=10, bottom=10)
    assert frame.x([0, 5, 10, 99]).tolist() == [10, 60, 110, 110]
    assert frame.y([0, 1, -5, np.nan]).tolist() == [60, 10, 60, 60]
    logarithmic = Frame(log_axis(1, 100), axis(0, 1), width=120, left=10, right=10)
    assert logarithmic.x([1, 10, 100, 0]).tolist() == pytest.approx([10, 60, 110, 10])
    assert named_axis(["a", "b"]).place(np.array([0, 1])).tolist() == [0.25, 0.75]


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.06), (1.001, 1.0511), (1.0, 900.0), (0.99, 1.05001)])
def test_no_bar_lies_on_both_sides_of_a_limit(low: float, high: float) -> None:
    edges = edges_through(1.05, low, high, 9)
    assert 1.05 in edges
    assert edges[0] <= low
    assert edges[-1] >= high
    assert len(edges) <= 12
    np.testing.assert_allclose(np.diff(edges), np.diff(edges)[0])
