"""The page: complete, safe, well-formed, and content with less."""

import base64
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from report_samples import HOSTILE, column, full_data, scored_rows, with_metrics

from bayesnde_cli.report.colours import scale_colours
from bayesnde_cli.report.page import render
from bayesnde_cli.report.report_data import ReportData, ScoredRows, Subject
from png_pixels import decoded_png

SECTIONS = ["verdict", "metrics", "training", "densities", "map", "marginals", "errors", "lowest", "provenance"]


def _page(text: str) -> ElementTree.Element:
    assert text.startswith("<!doctype html>\n")
    return ElementTree.fromstring(text.removeprefix("<!doctype html>\n"))


def _sections(text: str) -> list[str]:
    return [part.attrib["id"] for part in _page(text).iter("section")]


def test_full_data_of_two_features_have_every_section_in_order() -> None:
    assert _sections(render(full_data())) == SECTIONS


def test_more_features_have_a_matrix_of_pairs_instead_of_a_map() -> None:
    wanted = [{"map": "pairs"}.get(name, name) for name in SECTIONS]
    assert _sections(render(full_data(n_columns=4))) == wanted


def test_nothing_but_a_subject_is_enough() -> None:
    assert _sections(render(ReportData(Subject("t", "test", "now")))) == ["verdict"]


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        ({"metrics": {}}, {"metrics"}),
        ({"training": ()}, {"training"}),
        ({"rows": None}, {"densities", "map", "errors"}),
        ({"columns": ()}, {"map", "marginals"}),
        ({"pair_maps": ()}, {"map"}),
        ({"lowest": None}, {"lowest"}),
        ({"seen_log_density": {}}, set()),
    ],
)
def test_a_part_that_is_not_known_is_left_out_and_the_others_stay(missing: dict, gone: set[str]) -> None:
    assert _sections(render(replace(full_data(), **missing))) == [name for name in SECTIONS if name not in gone]


def test_no_name_becomes_markup() -> None:
    text = render(full_data(n_columns=3))
    assert HOSTILE not in text
    assert not re.search(r"<script", text, re.IGNORECASE)
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in text
    _page(text)


def test_the_page_needs_nothing_from_anywhere() -> None:
    text = render(full_data(n_columns=3))
    assert "http://" not in text
    assert "https://" not in text
    assert "//" not in re.sub(r"base64,[A-Za-z0-9+/=]*", "", text.split("</style>")[0])
    for element in _page(text).iter():
        for name in ("src", "href"):
            assert element.attrib.get(name, "data:").startswith("data:image/png;base64,") or name not in element.attrib
    assert not re.search(r"@import|url\(", text)


def test_every_plot_has_a_size_a_role_and_a_title() -> None:
    plots = list(_page(render(full_data(n_columns=4))).iter("svg"))
    assert len(plots) > 10
    for plot in plots:
        assert re.fullmatch(r"0 0 [\d.]+ [\d.]+", plot.attrib["viewBox"])
        assert plot.attrib["role"] == "img"
        assert plot.findtext("title")
        numbers = " ".join(path.attrib["d"] for path in plot.iter("path"))
        assert "nan" not in numbers
        assert "inf" not in numbers


def test_the_size_of_the_page_is_bounded() -> None:
    few, many = (replace(full_data(), rows=scored_rows(n)) for n in (300, 50_000))
    repeated = tuple(replace(part, real=np.resize(part.real, 50_000)) for part in many.columns)
    assert len(render(replace(many, columns=repeated))) < len(render(few)) + 150_000


def test_rows_without_a_number_break_nothing() -> None:
    rows = scored_rows()
    gone = np.full(len(rows.log_density), np.nan)
    text = render(replace(full_data(), rows=ScoredRows(gone, gone, np.full_like(gone, np.inf), gone, rows.verdict)))
    assert "errors" in _sections(text)
    assert "densities" not in _sections(text)


def test_constant_and_categorical_columns_can_be_drawn() -> None:
    constant = replace(column("c"), real=np.zeros(300), generated=np.zeros(500), is_whole=True)
    codes = replace(column("k", categories=("a", HOSTILE)), real=np.arange(300) % 2.0, generated=np.ones(500))
    _page(render(replace(full_data(n_columns=3), columns=(constant, codes, column("x")))))


def test_many_classes_are_cut_to_a_table_that_can_be_read() -> None:
    names = [f"class {index}" for index in range(50)]
    classes = {name: {"n": 1, "mean_log_density": -4.0, "mean_log_density_se": 0.1} for name in names}
    matrix = {"classes": names, "counts": np.eye(50, dtype=int).tolist(), "n": 50}
    data = full_data()
    text = render(replace(data, metrics=dict(data.metrics) | {"classes": classes, "confusion_matrix": matrix}))
    assert "By class, 20 of 50 classes" in text
    assert "found class 19" in text
    assert "found class 20" not in text


def test_a_confusion_matrix_of_three_classes_is_a_picture_too_the_first_class_on_top() -> None:
    matrix = {"classes": ["a", "b", "c"], "counts": [[4, 0, 0], [1, 2, 1], [0, 0, 0]], "n": 8}
    text = render(with_metrics(confusion_matrix=matrix))
    (plot,) = [plot for plot in _page(text).iter("svg") if (plot.findtext("title") or "").startswith("Share of each")]
    (image,) = plot.iter("image")
    cells = decoded_png(base64.b64decode(image.attrib["href"].partition(",")[2]))[50::100, 50::100]
    wanted = scale_colours(np.array([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25], [0.0, 0.0, 0.0]]))
    assert np.array_equal(cells, wanted)
    names = [(item.text, float(item.attrib["y"])) for item in plot.iter("text") if item.text in ("a", "b", "c")]
    upwards = sorted(names[3:], key=lambda item: -item[1])
    assert [name for name, _ in upwards] == ["c", "b", "a"]


def test_figures_without_a_mean_say_why_there_is_none() -> None:
    reasons = {"mean_log_density": "every row has missing cells"}
    text = render(with_metrics(mean_log_density=None, mean_log_density_se=None, reasons=reasons))
    assert "metrics" in _sections(text)
    assert "every row has missing cells" in text
    some = with_metrics(rows={"set": "test", "n": 300, "n_reliable": 299, "n_not_finite": 0, "n_incomplete": 7})
    assert "rows left out for missing cells: 7" in render(some)


def test_equal_data_make_equal_pages() -> None:
    assert render(full_data(n_columns=3)) == render(full_data(n_columns=3))


def test_each_answer_stands_in_the_page_before_any_figure() -> None:
    text = render(full_data())
    assert text.index("Can these densities be trusted?") < text.index('id="metrics"')


def _tiles(text: str) -> dict[str, str]:
    """The main figures by name: the value, and what stands below it."""
    (tiles,) = [part for part in _page(text).iter("div") if part.attrib.get("class") == "tiles"]
    return {box[0].text or "": f"{box[1].text} | {box[2].text}".replace("\u00a0", " ") for box in tiles}


def test_an_error_that_is_not_known_is_not_shown_as_none() -> None:
    known = _tiles(render(full_data()))
    assert known["of which Monte Carlo"] == (
        "± 0.0040 | nats, 2 standard errors; may be too low for rows that are not reliable: 1"
    )
    assert known["in the model's space"] == "-2.000 ± 0.200 | nats a row, after scaling"
    unknown = _tiles(render(with_metrics(mean_log_density_mc_se=None, mean_log_density_se=None)))
    assert unknown["of which Monte Carlo"].startswith("– |")
    assert unknown["mean log-density"].startswith("-4.000 |")


def test_the_accuracy_has_an_error_and_a_number_of_rows() -> None:
    assert _tiles(render(full_data()))["accuracy"] == (
        "80 % | ± 4.6 % (2 standard errors), class of highest density, 300 rows"
    )


def test_estimators_fitted_to_a_part_of_the_rows_say_so() -> None:
    text = render(full_data())
    assert "components 8, fitted to 900 of 2,000 rows" in text
    by_class = {"u": {"n_fit_rows": 10, "n_train_rows": 50}, "v": {"n_fit_rows": 10, "n_train_rows": 10}}
    machine = {"chosen": by_class, "outliers": {"n_outliers": 30, "auroc": 0.8}}
    assert "by class, fitted to 20 of 60 rows" in render(with_metrics(baselines={"one_class_svm": machine}))
    whole = {"chosen": {"n_fit_rows": 50, "n_train_rows": 50, "nu": 0.5}, "outliers": machine["outliers"]}
    assert ">nu 0.500<" in render(with_metrics(baselines={"one_class_svm": whole}))


def test_distances_stand_beside_those_of_the_model_to_itself() -> None:
    text = render(full_data())
    assert ">two samples of the model itself<" in text
    assert '>ks</td><td class="number">0.0500</td><td class="number">0.0400<' in text


def test_folded_parts_are_open_on_paper() -> None:
    assert "details::details-content { content-visibility: visible;" in render(full_data()).partition("@media print")[2]


def test_enormous_numbers_are_short() -> None:
    assert _tiles(render(with_metrics(mean_log_density=-1.5e60)))["mean log-density"].startswith("-1.500e+60 ±")
