"""The page: complete, safe, well-formed, and content with less."""

import functools
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from report_samples import HOSTILE, column, full_data, light_data, metrics, scored_rows

from bayesnde_cli.report.collect import ModelFigures, ReportData, ScoredRows, Subject
from bayesnde_cli.report.page import render
from png_pixels import decode_png

SECTIONS = ["verdict", "metrics", "training", "densities", "map", "marginals", "errors", "lowest", "provenance"]


@functools.cache
def _render_full(n_columns: int = 2) -> str:
    return render(full_data(n_columns))


def _page(text: str) -> ElementTree.Element:
    assert text.startswith("<!doctype html>\n")
    return ElementTree.fromstring(text.removeprefix("<!doctype html>\n"))


def _sections(text: str) -> list[str]:
    return [part.attrib["id"] for part in _page(text).iter("section")]


def test_a_page_has_every_section_in_order_and_leaves_out_what_is_unknown() -> None:
    assert _sections(_render_full()) == SECTIONS
    assert _sections(_render_full(3)) == [{"map": "pairs"}.get(name, name) for name in SECTIONS]
    assert _sections(render(ReportData(Subject("t", "test")))) == ["verdict"]
    full = full_data()
    some = ReportData(full.subject, rows=full.rows, model=full.model._replace(pair_maps=(), seen_log_density={}))
    assert _sections(render(some)) == ["verdict", "densities", "marginals", "errors", "provenance"]


def test_the_page_gives_the_weights_of_members() -> None:
    words = " ".join(_render_full().split())
    assert "<th>Density</th>" in words
    assert "latent variables 70 %, kernel density 30 %" in words.replace("\u00a0", " ")
    assert "as a kernel density does" not in words  # these rows are not memorised
    full = full_data()
    alone = replace(
        full, subject=replace(full.subject, facts={**full.subject.facts, "members": {"latent variables": 1.0}})
    )
    assert "<th>Density</th>" not in render(alone)


def test_the_page_is_safe_and_needs_nothing_from_anywhere() -> None:
    text = _render_full(3)
    assert HOSTILE not in text
    assert not re.search(r"<script|https?://|@import|url\((?!#)", text, re.IGNORECASE)
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;&amp;&#39;\\x00" in text
    assert "//" not in re.sub(r"base64,[A-Za-z0-9+/=]*", "", text.split("</style>")[0])
    for element in _page(text).iter():
        for name in {"src", "href"} & element.attrib.keys():
            assert element.attrib[name].startswith(("data:image/png;base64,", "#"))
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_every_plot_has_a_size_a_role_and_a_title() -> None:
    plots = list(_page(_render_full(3)).iter("svg"))
    assert len(plots) > 10
    for plot in plots:
        assert re.fullmatch(r"0 0 [\d.]+ [\d.]+", plot.attrib["viewBox"])
        assert plot.attrib["role"] == "img"
        assert plot.findtext("title")
        assert not list(plot.iter("style"))
        assert not re.search("nan|inf", " ".join(path.get("d", "") for path in plot.iter("path")))


def test_the_size_of_the_page_is_bounded() -> None:
    many, full = scored_rows(50_000), full_data()
    repeated = tuple(replace(part, real=np.resize(part.real, 50_000)) for part in full.model.columns)
    data = ReportData(full.subject, rows=many, model=full.model._replace(columns=repeated))
    assert len(render(data)) < len(_render_full()) + 150_000


def test_odd_rows_and_columns_can_be_drawn() -> None:
    rows = scored_rows()
    gone = np.full(len(rows.log_density), np.nan)
    constant = replace(column("c"), real=np.zeros(300), generated=np.zeros(500), is_whole=True)
    codes = replace(column("k", categories=("a", HOSTILE)), real=np.arange(300) % 2.0, generated=np.ones(500))
    data = ReportData(
        Subject("t", "test"),
        rows=ScoredRows(gone, gone, np.full_like(gone, np.inf), gone, rows.verdict),
        model=ModelFigures(columns=(constant, codes, column("x")), pair_maps=full_data(3).model.pair_maps),
    )
    assert _sections(render(data)) == ["verdict", "pairs", "marginals", "errors"]


def test_many_classes_are_cut_to_a_table_that_can_be_read() -> None:
    names = [f"class {index}" for index in range(50)]
    classes = {name: {"n": 1, "mean_log_density": -4.0, "mean_log_density_se": 0.1} for name in names}
    matrix = {"classes": names, "counts": np.eye(50, dtype=int).tolist(), "n": 50}
    text = render(light_data(classes=classes, confusion_matrix=matrix))
    assert "By class, 20 of 50 classes" in text
    assert "found class 19" in text
    assert "found class 20" not in text


def test_a_confusion_matrix_of_three_classes_is_a_picture_too_the_first_class_on_top() -> None:
    counts = {"classes": ["a", "b", "c"], "counts": [[4, 0, 0], [1, 2, 1], [0, 0, 0]], "n": 8}
    text = render(ReportData(Subject("t", "test"), metrics() | {"confusion_matrix": counts, "baselines": None}))
    (plot,) = [plot for plot in _page(text).iter("svg") if (plot.findtext("title") or "").startswith("Share of each")]
    image, _colour_bar = plot.iter("image")
    shares = decode_png(image.attrib["href"])[..., 1]  # the green of viridis grows with the share
    matrix = [float(number) for number in re.findall(r"-?[\d.]+", image.attrib["transform"])]
    shown = shares if matrix[3] > 0 else shares[::-1]
    assert [shown[0].argmax(), shown[1].argmax(), len(set(shown[2]))] == [0, 1, 1]
    names = [(item.text, float(item.attrib["y"])) for item in plot.iter("text") if item.text in ("a", "b", "c")]
    assert [name for name, _ in sorted(names[3:], key=lambda item: item[1])] == ["a", "b", "c"]  # from the top


def _tiles(data: ReportData) -> dict[str, str]:
    """The main figures by name: value and explanation."""
    (tiles,) = [part for part in _page(render(data)).iter("div") if part.attrib.get("class") == "tiles"]
    words = {box[0].text or "": f"{box[1].text} | {box[2].text}".replace("\u00a0", " ") for box in tiles}
    return {name: " ".join(text.split()) for name, text in words.items()}


def test_tiles_explain_errors_and_what_is_missing() -> None:
    known = _tiles(ReportData(Subject("t", "test"), metrics() | {"baselines": None}))
    assert known["Monte-Carlo part"] == "± 0.0040 | nats, ± 2 s.e.; may be too low for rows that are not reliable: 1"
    assert known["accuracy"] == "80 % | ± 4.6 % (2 s.e.), class of highest density, 300 rows"
    assert known["in the model's space"] == "-2.000 ± 0.200 | nats per row, after scaling"
    rows = metrics()["rows"] | {"n_incomplete": 7}
    found = metrics() | {"baselines": None, "rows": rows, "mean_log_density_mc_se": None, "mean_log_density_se": None}
    unknown = _tiles(ReportData(Subject("t", "test"), found))
    assert unknown["Monte-Carlo part"].startswith("– |")
    assert unknown["mean log-density"].startswith("-4.000 |")
    assert unknown["mean log-density"].endswith("; rows left out for missing cells: 7")
    reasons = {"mean_log_density": "every row has missing cells"}
    nothing = _tiles(ReportData(Subject("t", "test"), found | {"mean_log_density": None, "reasons": reasons}))
    assert nothing["mean log-density"] == "– | every row has missing cells"


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"n_fit_rows": 900, "n_train_rows": 2000, "components": 8}, ">components 8, fitted to 900 of 2,000 rows<"),
        (
            {"u": {"n_fit_rows": 10, "n_train_rows": 50}, "v": {"n_fit_rows": 10, "n_train_rows": 10}},
            ">by class, fitted to 20 of 60 rows<",
        ),
        ({"n_fit_rows": 50, "n_train_rows": 50, "nu": 0.5}, ">nu 0.500<"),
    ],
)
def test_estimators_fitted_to_a_part_of_the_rows_say_so(chosen: dict, words: str) -> None:
    machine = {"chosen": chosen, "outliers": {"n_outliers": 30, "auroc": 0.8}}
    assert words in render(light_data(baselines={"one_class_svm": machine}))


def test_light_and_dark_pages_share_one_drawing() -> None:
    style, body = _render_full().split("</style>", 1)
    for name in ("ink", "soft", "rule", "s1", "s2", "s3", "bad"):
        assert style.count(f" --{name}:") == 3  # light, dark and on paper
        assert name in ("bad",) or f"var(--{name})" in body
