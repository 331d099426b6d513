"""Plots: ranges and bins against values worked out by hand, and SVG that is safe, small and always the same."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from report_samples import HOSTILE, column, pair_map, training

from bayesnde_cli.report import plots
from bayesnde_cli.report.plots import (
    COLOURS,
    HistogramAxis,
    bin_shares,
    edges_through,
    grid_png,
    grid_svg,
    integer_edges,
    robust_range,
    widen,
)
from png_pixels import decode_png

SVG = "{http://www.w3.org/2000/svg}"
EDGES = np.linspace(-3.0, 3.0, 13)


def test_a_histogram_counts_shares_and_puts_values_beyond_it_into_the_end_bins() -> None:
    edges = np.array([0.0, 1.0, 2.0, 3.0])
    values = np.array([-9.0, 0.5, 1.5, 1.6, 99.0, np.nan, np.inf, 1.0])
    # Of the six finite ones: -9 and 0.5; 1.5, 1.6 and 1.0; 99.
    assert bin_shares(values, edges) == pytest.approx([2 / 6, 3 / 6, 1 / 6])
    assert bin_shares(np.empty(0), edges) == pytest.approx([0, 0, 0])


def test_one_wild_row_does_not_stretch_a_range() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 1e9, np.nan])
    # The quartiles of the six finite values are 1.25 and 3.75: nothing beyond 3.75 + 4 * 2.5 counts.
    assert robust_range(values) == (0.0, 4.0)
    assert robust_range(np.array([2.0, 2.0])) == pytest.approx((1.999, 2.001))
    assert robust_range(np.array([np.nan])) == (0.0, 1.0)
    assert widen(0.0, 10.0, by=0.1) == (-1.0, 11.0)


def test_bins_of_whole_numbers_hold_equally_many() -> None:
    assert integer_edges(0.0, 3.0, 10).tolist() == [-0.5, 0.5, 1.5, 2.5, 3.5]
    assert integer_edges(0.0, 9.0, 4).tolist() == [-0.5, 2.5, 5.5, 8.5, 11.5]


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.06), (1.001, 1.0511), (1.0, 900.0), (0.99, 1.05001)])
def test_no_bar_lies_on_both_sides_of_a_limit(low: float, high: float) -> None:
    edges = edges_through(1.05, low, high, 9)
    assert 1.05 in edges
    assert edges[0] <= low
    assert edges[-1] >= high
    assert len(edges) <= 12
    np.testing.assert_allclose(np.diff(edges), np.diff(edges)[0])


def _histogram(title: str = "t", label: str = "x") -> plots.Plot:
    values = np.random.default_rng(0).normal(size=200)
    samples = [("one", values, "s1"), ("two", values, "s2")]
    return plots.plot_histograms(samples, EDGES, HistogramAxis(label, 1.0), title=title)


def test_a_plot_of_a_page_has_variables_for_colours_and_ignores_the_settings_of_the_user() -> None:
    import matplotlib

    plot = _histogram()
    assert plot.legend == [("one", "s1"), ("two", "s2")]
    assert not [colour for colour in COLOURS.values() if colour in plot.svg]
    names = set(re.findall(r"var\(--(.*?)\)", plot.svg))
    assert names == {"s1", "s2", "soft", "rule", "ink"}
    assert "font-family" not in plot.svg
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True}):
        assert _histogram() == plot
        assert matplotlib.rcParams["font.size"] == 30


def test_names_are_plain_text_whatever_they_hold() -> None:
    root = ElementTree.fromstring(_histogram(title=HOSTILE, label="$x^2$ <b> 中").svg)
    assert (root.findtext("title") or "").startswith("<script>")
    assert "$x^2$ <b> 中" in [element.text for element in root.iter("text")]


def test_dots_are_one_path_and_stay_within_the_axes() -> None:
    x = np.array([-4.0, -3.0, -3.5, -1e9, np.nan])
    groups = {"all": (np.arange(5), "s1")}
    text = plots.plot_errors(x, np.array([0.01, 0.02, 0.03, 0.04, 0.05]), groups, target=0.05).svg
    (dots,) = [path for path in ElementTree.fromstring(text).iter("path") if "round" in path.get("style", "")]
    assert dots.attrib["d"].count("M") == 4
    assert "nan" not in text


@pytest.mark.parametrize("values", [np.zeros(3), np.full(3, np.nan), np.array([1e-300, 1.0, 1e300])])
def test_odd_values_can_be_drawn(values: np.ndarray) -> None:
    odd = replace(training("refine"), losses={"elbo": (np.arange(3.0), values)})
    drawn = [
        plots.plot_loss(odd, "elbo"),
        plots.plot_errors(values, values, {"all": (np.arange(3), "s1")}, target=0.05),
        plots.plot_against_truth(values, values),
        plots.plot_validation(odd, reference=float(values[0])),
    ]
    for plot in drawn:
        paths = " ".join(path.get("d", "") for path in ElementTree.fromstring(plot.svg).iter("path"))
        assert not re.search("nan|inf", paths)


def test_a_density_map_has_its_first_row_at_the_bottom() -> None:
    cells = pair_map(0, 1)._replace(density=np.zeros((10, 10)))
    cells.density[0, :] = 1.0
    root = ElementTree.fromstring(plots.plot_density_map(cells, (column("a"), column("b"))).svg)
    image = next(root.iter("image"))
    is_bright = decode_png(image.attrib["href"])[..., 0] > 200
    # matplotlib stores the first row at the top and mirrors it, or at the bottom: the transform says which.
    is_mirrored = float(re.split(r"[( )]", image.get("transform", "matrix(1 0 0 1 0 0)"))[4]) < 0
    assert is_bright[0 if is_mirrored else -1].all()
    assert is_bright.sum() == 10


def test_a_grid_file_stands_alone() -> None:
    log_density = np.array([[-1.0, -2.0], [-3.0, -np.inf], [-30.0, 0.0]])
    categories = ((), ("u", "v" * 40))
    extent = (-0.5, 2.5, -0.5, 1.5)
    found = grid_svg(log_density, extent, names=(HOSTILE, "word"), categories=categories, title="log p(a, b)")
    root = ElementTree.fromstring(found)
    assert (root.tag, root.attrib["width"], root.attrib["height"]) == (f"{SVG}svg", "640", "520")
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"log p(a, b)", "u", "v" * 11 + "…", "log-density, nats"} <= set(texts)
    assert b"var(" not in found
    assert not re.search(rb'href="(?!#|data:image/png)', found)


def test_a_grid_png_has_the_first_column_to_the_right_and_the_second_upwards() -> None:
    log_density = np.full((3, 2), -np.inf)
    log_density[2, 0] = 0.0
    pixels = decode_png(grid_png(log_density))
    assert pixels.shape == (600, 600, 3)
    is_bright = pixels[..., 0] > 200
    assert is_bright[300:, 400:].all()
    assert is_bright.sum() == 300 * 200
    assert decode_png(grid_png(np.full((2, 2), np.nan))).shape == (600, 600, 3)
