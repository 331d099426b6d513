"""Maps of the experiments with two columns, and the pictures of the results."""

import math
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import fake_model
from bayesnde_cli.artifacts.experiments_layout import ArmLayout, ExperimentsLayout
from bayesnde_cli.cli.console import Console
from bayesnde_cli.config import EvaluateConfig, resolve
from bayesnde_cli.evaluation.baselines import Method, Part, Parts, competitor
from bayesnde_cli.evaluation.baselines.fitted import FittedParts
from bayesnde_cli.stages.reproduce import Asked, competitor_arm, pictures, rows, run_reproduce
from bayesnde_cli.stages.reproduce.collected_maps import run_maps
from bayesnde_cli.stages.reproduce.density_map import DensityMap, grid_points
from bayesnde_cli.stages.reproduce.drawing import budget_points, dimension_series, draw_all, shown_maps
from bayesnde_cli.stages.reproduce.experiments import BUDGETS, DIMENSIONS, EXPERIMENTS
from bayesnde_cli.stages.reproduce.maps import read_map, simulator_of, true_map, write_own_map
from bayesnde_cli.stages.reproduce.pictures import (
    BudgetPoint,
    Mean,
    Role,
    Series,
    budget_curve,
    density_maps,
    spearman_by_dimension,
)
from bayesnde_cli.stages.reproduce.result import Result
from bayesnde_cli.stages.reproduce.settings import prepare_settings

SVG = "{http://www.w3.org/2000/svg}"
INVOLUTE = EXPERIMENTS["involute"]
MIXTURE = Asked(methods=("gaussian_mixture",), test_rows=40)


@pytest.fixture(autouse=True, scope="module")
def _few_rows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rows, "SIMULATED_ROWS", 600)
        yield


@pytest.fixture(scope="module")
def fitted(_few_rows: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with an arm of the mixture; it is to be looked at, not changed."""
    root = tmp_path_factory.mktemp("fitted")
    _competitor_arm(root)
    return root


@pytest.fixture
def copy(fitted: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(fitted, tmp_path / "copy"))


def _competitor_arm(root: Path, asked: Asked = MIXTURE, name: str = "involute") -> tuple[Result, ArmLayout]:
    (result,) = run_reproduce(root, EXPERIMENTS[name], asked, Console(quiet=True)).results
    return result, ExperimentsLayout(root).arm(*result.key)


def _own_arm(root: Path, *settings: str) -> ArmLayout:
    """An arm of ours whose rows are prepared; a stand-in is its model."""
    layout = ExperimentsLayout(root)
    arm = layout.arm("involute", "default", 0)
    files = rows.data_files(layout, INVOLUTE, root)
    rows.prepare_rows(arm.run, files, prepare_settings(INVOLUTE, 40, settings), Console(quiet=True))
    write_own_map(arm, resolve(EvaluateConfig, flags={}, environ={}, assignments=["evaluate.seed=0"]))
    return arm


def _result(experiment: str, method: str, seed: int = 0, *, is_own: bool = False, **figures: object) -> Result:
    return Result(experiment, method, is_own, seed, [], 500, figures, {}, "0" * 64, 1.0, 1.0, "cpu", "", "0")


# Maps


def test_the_map_of_a_competitor_leaves_its_figures_alone(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    with_map, arm = _competitor_arm(fitted)
    monkeypatch.setattr(competitor_arm, "simulator_of", lambda experiment: None)
    without, other = _competitor_arm(tmp_path)
    assert arm.map_file.exists()
    assert not other.map_file.exists()
    assert (with_map.figures, with_map.chosen, with_map.rows_sha256) == (
        without.figures, without.chosen, without.rows_sha256,
    )  # fmt: skip
    assert with_map.figures["n"] == 40
    assert arm.scores_file.read_bytes() == other.scores_file.read_bytes()


def test_points_are_scored_apart_from_the_test_rows() -> None:
    def batch_dependent(train: Part, validation: Part, seed: int) -> FittedParts:
        return FittedParts(lambda part: part.cells[:, 0] + part.cells.mean(), {})

    methods = {"odd": Method(batch_dependent)}
    rng = np.random.default_rng(0)
    train, test, more = (Part(rng.normal(3.0, 2.0, (n, 2))) for n in (50, 7, 5))
    found = competitor("odd", {"file": Parts(train, train, test)}, seed=0, methods=methods)
    again = found.log_density_of({"file": Parts(train, train, test)})
    np.testing.assert_array_equal(again, found.log_density)
    # What would be told of the test rows if the points were scored together with them.
    both = Part(np.concatenate([test.cells, more.cells]))
    assert not np.allclose(found.log_density_of({"file": Parts(train, train, both)})[:7], found.log_density)


def test_a_map_is_that_of_the_fitted_density(fitted: Path) -> None:
    _, arm = _competitor_arm(fitted)
    found = read_map(arm.map_file)
    assert found.log_density.shape == (50, 50)
    cell = (found.x1[1] - found.x1[0]) * (found.x2[1] - found.x2[0])
    # The box of the training rows and a margin: nearly all of the probability; an axis too many or too few shows.
    assert 0.95 < found.density.sum() * cell < 1.02
    truth = true_map(_simulator(), found)
    turned = replace(found, log_density=found.log_density.T)
    assert found.spearman(truth) > 0.9 > turned.spearman(truth)


def _simulator():
    simulator = simulator_of(INVOLUTE)
    assert simulator is not None
    return simulator


def test_all_arms_have_the_same_box(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_model.install(monkeypatch, fake_model.NormalModel(n_columns=2))
    _, arm = _competitor_arm(copy)
    theirs, ours = read_map(arm.map_file), read_map(_own_arm(copy).map_file)
    assert ours.is_beside(theirs)
    train = rows.split_rows(arm_rows := ExperimentsLayout(copy).prepared("involute", "marginal", MIXTURE.test_rows),
                            rows.read_schema(arm_rows), "train").values  # fmt: skip
    span = np.ptp(train, axis=0)
    np.testing.assert_allclose([ours.x1[0], ours.x2[0]], train.min(axis=0) - 0.05 * span)
    np.testing.assert_allclose([ours.x1[-1], ours.x2[-1]], train.max(axis=0) + 0.05 * span)


def test_our_map_is_in_the_units_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_model.install(monkeypatch, fake_model.NormalModel(n_columns=2))
    plain = read_map(_own_arm(tmp_path / "plain").map_file)
    normal = -0.5 * (plain.points**2).sum(axis=1) - math.log(2 * math.pi)
    np.testing.assert_allclose(plain.log_density.ravel(), normal, atol=1e-4)
    scaled = read_map(_own_arm(tmp_path / "scaled", "prepare.scale=standard", "prepare.scale_on=train").map_file)
    cell = (scaled.x1[1] - scaled.x1[0]) * (scaled.x2[1] - scaled.x2[0])
    # A normal of the rows' own spread, cut at their box; without the Jacobian it would be about 9 times as much.
    assert 0.7 < scaled.density.sum() * cell < 1.0


def test_an_arm_fitted_to_other_rows_is_left_out(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_model.install(monkeypatch, fake_model.NormalModel(n_columns=2))
    result, _ = _competitor_arm(copy)
    own = _result("involute", "default", is_own=True)
    _own_arm(copy)
    layout = ExperimentsLayout(copy)
    assert _names(layout, [result, own]) == ["ours, default", "Gaussian mixture"]
    assert _names(layout, [result]) == ["Gaussian mixture"]
    other = layout.arm("involute", "kernel_density", 0)
    other.root.mkdir()
    _, elsewhere = _competitor_arm(copy / "elsewhere", replace(MIXTURE, methods=("gaussian",)), "gmm-2")
    other.map_file.write_bytes(elsewhere.map_file.read_bytes())
    with_other = [result, own, _result("involute", "kernel_density")]
    assert _names(layout, with_other) == ["ours, default", "Gaussian mixture"]


def _names(layout: ExperimentsLayout, results: Sequence[Result]) -> list[str]:
    return list(shown_maps(INVOLUTE, run_maps(layout, results)))


def test_a_finished_arm_without_a_map_gets_one_and_keeps_its_result(copy: Path) -> None:
    _, arm = _competitor_arm(copy)
    before = arm.map_file.read_bytes(), arm.result_file.read_bytes()
    arm.map_file.unlink()
    _competitor_arm(copy)
    assert (arm.map_file.read_bytes(), arm.result_file.read_bytes()) == before


def test_more_columns_have_no_map(tmp_path: Path) -> None:
    _, arm = _competitor_arm(tmp_path, replace(MIXTURE, methods=("gaussian",)), "gmm-5")
    assert sorted(path.name for path in arm.root.iterdir()) == ["result.json", "scores.parquet"]
    with_maps = [name for name, experiment in EXPERIMENTS.items() if simulator_of(experiment) is not None]
    assert with_maps == ["involute", "gmm-2", "ablation-2d"]


def test_ranks_count_a_density_of_zero_and_leave_out_what_is_no_number() -> None:
    truth = _map([[1.0, 2.0], [3.0, 4.0]])
    assert _map([[-math.inf, 0.0], [1.0, 9.0]]).spearman(truth) == pytest.approx(1.0)
    assert _map([[5.0, 0.0], [-1.0, -math.inf]]).spearman(truth) == pytest.approx(-1.0)
    assert _map([[math.nan, 0.0], [1.0, 9.0]]).spearman(truth) == pytest.approx(1.0)
    assert _map([[2.0, 2.0], [2.0, 2.0]]).spearman(truth) is None


# Pictures


def _map(log_density: Sequence[Sequence[float]] | np.ndarray) -> DensityMap:
    values = np.asarray(log_density, np.float64)
    return DensityMap(np.arange(float(values.shape[0])), np.arange(float(values.shape[1])), values)


def _hill(height: float = 1.0) -> DensityMap:
    side = np.linspace(-3.0, 3.0, 20)
    normal = -0.5 * (grid_points(side, side) ** 2).sum(axis=1).reshape(20, 20)
    return DensityMap(side, side, normal + math.log(height))


def _checked(picture: bytes) -> ElementTree.Element:
    """The picture, if it is well-formed, has no number that is none, and needs nothing from elsewhere."""
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    assert root.get("width") == "900"
    for element in root.iter():
        assert element.tag not in (f"{SVG}script", f"{SVG}foreignObject")
        for name, value in element.attrib.items():
            if name == "href":
                assert value.startswith("data:image/png;base64,")
            elif name not in ("class", "role", "preserveAspectRatio"):
                assert not re.search(r"nan|inf", value, re.IGNORECASE), (element.tag, name, value)
    return root


def _texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def _images(root: ElementTree.Element) -> list[str]:
    return [element.attrib["href"] for element in root.iter(f"{SVG}image")]


def test_the_check_of_a_picture_can_fail() -> None:
    start = '<svg xmlns="http://www.w3.org/2000/svg" width="900">'
    for inner in ('<path d="M1 nanL2 3"/>', '<image href="https://example.org/a.png"/>', "<script/>"):
        with pytest.raises(AssertionError):
            _checked(f"{start}{inner}</svg>".encode())


def test_maps_have_each_name_once_and_one_colour_scale() -> None:
    odd = 'a <b> & "c"'
    maps = {"true density": _hill(), "same": _hill(), "half": _hill(0.5), odd: _map(np.full((20, 20), -math.inf))}
    root = _checked(density_maps("Two <columns>", maps))
    texts = _texts(root)
    assert all(texts.count(name) == 1 for name in (*maps, "Two <columns>"))
    assert [text for text in texts if text.startswith("Spearman ")] == [
        "Spearman 1.000",
        "Spearman 1.000",
        "Spearman –",
    ]
    truth, same, half, nothing, _scale = _images(root)
    assert truth == same
    assert len({truth, half, nothing}) == 3  # each by a scale of its own, the half would look like the whole
    assert any("by density and not by its logarithm" in text for text in texts)


@pytest.mark.parametrize("n_maps", [1, 4, 5, 9, 13])
def test_maps_lie_side_by_side_on_the_paper(n_maps: int) -> None:
    root = _checked(density_maps("Maps", {f"m{index}": _hill() for index in range(n_maps)}))
    places = [tuple(float(e.attrib[name]) for name in ("x", "y", "width", "height")) for e in root.iter(f"{SVG}image")]
    assert len(set(places)) == n_maps + 1
    for x, y, width, height in places:
        assert 0 <= x <= x + width <= 900
        assert 0 <= y <= y + height <= float(root.attrib["height"])


def test_the_first_column_runs_to_the_right_and_the_second_upwards(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[np.ndarray] = []
    monkeypatch.setattr(pictures, "data_uri", lambda pixels: drawn.append(pixels) or "data:image/png;base64,")
    log_density = np.full((20, 20), -9.0)
    log_density[-1, :8] = 0.0  # x1 at its highest, x2 low
    _checked(density_maps("Maps", {"true": replace(_hill(), log_density=log_density)}))
    is_bright = drawn[0][:, :, 0] > 200
    assert is_bright[-1, -1]
    assert is_bright.sum() == 16 * 8
    assert not is_bright[:40].any()


def test_a_spike_does_not_spoil_the_colours() -> None:
    log_density = _hill().log_density.copy()
    log_density[0, 0] = 5000.0
    spiky = replace(_hill(), log_density=log_density)
    truth, _, scale = _images(_checked(density_maps("Maps", {"true": _hill(), "spiky": spiky})))
    assert [truth, scale] == _images(_checked(density_maps("Maps", {"true": _hill()})))


def test_lines_are_named_once_and_labels_do_not_collide() -> None:
    names = ["ours, default", *(f"m{index} <&>" for index in range(11))]
    series = [Series(name, DIMENSIONS, [0.9] * 6, Role.OURS if "ours" in name else Role.OTHER) for name in names]
    series.append(Series("gone", DIMENSIONS, [math.nan] * 6))
    series.append(Series("in the paper", DIMENSIONS, [0.9, math.nan, math.nan, 0.6, 0.5, math.nan], Role.PRINTED))
    root = _checked(spearman_by_dimension(series))
    texts = _texts(root)
    assert all(texts.count(name) == 1 for name in (*names, "in the paper"))
    assert "gone" not in texts
    assert len([e for e in root.iter(f"{SVG}path") if "diamond" in e.get("class", "")]) == 3
    heights = sorted(float(e.attrib["y"]) for e in root.iter(f"{SVG}text") if e.text in (*names, "in the paper"))
    assert min(np.diff(heights)) >= 16.9
    assert 10 < min(heights) < max(heights) < float(root.attrib["height"]) - 80  # in a plot of its own, 40 lower
    assert [e.get("class") for e in root.iter(f"{SVG}path")].count("line own") == 1


def test_a_missing_dimension_breaks_the_line() -> None:
    whole = Series("a", DIMENSIONS, [0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    broken = replace(whole, y=[0.9, 0.8, math.nan, 0.6, 0.5, math.nan])
    for one, n_pieces in ((whole, 1), (broken, 2)):
        paths = _checked(spearman_by_dimension([one])).iter(f"{SVG}path")
        (path,) = (e.attrib["d"] for e in paths if e.get("class") == "line c0")
        assert path.count("M") == n_pieces


def test_the_budget_curve_has_whiskers_where_there_are_several_seeds() -> None:
    points = [BudgetPoint(n, Mean(0.9 - 1 / n, 0.01), Mean(0.8), Mean(1 / n, 0.001)) for n in reversed(BUDGETS)]
    root = _checked(budget_curve(points))
    bars = [group[0].attrib["d"].count("M") for group in root.iter(f"{SVG}g") if group.get("class") == "whisker"]
    assert bars == [5, 0, 5]
    texts = _texts(root)
    assert [texts.count(name) for name in ("bridge", "importance sampling", "100", "1,600")] == [1, 1, 2, 2]
    first = next(
        e.attrib["d"] for e in root.iter(f"{SVG}path") if e.get("class") == "line own" and "L" in e.attrib["d"]
    )
    steps = np.diff([float(place.split()[0]) for place in re.split("[ML]", first)[1:]])
    np.testing.assert_allclose(steps, steps[0], atol=0.2)  # doublings are equal steps: the axis is logarithmic


def test_budgets_that_differ_little_have_plain_numbers_at_their_axis() -> None:
    means = [Mean(0.99912 + 2e-5 * index) for index in range(len(BUDGETS))]
    points = [BudgetPoint(n, mean, mean, Mean(0.1)) for n, mean in zip(BUDGETS, means, strict=True)]
    texts = _texts(_checked(budget_curve(points)))
    assert {"0.99912", "0.99916", "0.99920"} <= set(texts)
    assert not any(re.fullmatch(r"[-\d.]+e-?\d+", text) for text in texts)


def test_a_single_budget_can_be_drawn() -> None:
    _checked(budget_curve([BudgetPoint(100, Mean(0.9), Mean(0.9), Mean(0.0))]))


# From results to files


def test_numbers_of_several_seeds_become_their_mean_and_its_error() -> None:
    results = [
        _result("gmm-15", "budget-400", seed, is_own=True, spearman=value, importance={"spearman": 0.5}, mean_mc_se=0.1)
        for seed, value in enumerate((0.7, 0.8, 0.9))
    ]
    (point,) = budget_points(results)
    assert point.n_draws == 400
    assert point.bridge == pytest.approx((0.8, 0.1 / math.sqrt(3)))
    assert point.importance == pytest.approx((0.5, 0.0))
    (single,) = budget_points(results[:1])
    assert math.isnan(single.bridge.se)


def test_methods_without_a_result_have_no_line() -> None:
    results = [
        _result("gmm-2", "nsf", spearman=0.9), _result("gmm-25", "default", is_own=True, spearman=0.8),
        _result("gmm-2", "maf", spearman=None), _result("gmm-2", "paper-no-warm-start", is_own=True, spearman=0.1),
    ]  # fmt: skip
    series = dimension_series(results)
    assert [(one.name, one.role) for one in series] == [
        ("ours, default", Role.OURS), ("NSF", Role.OTHER), ("in the paper", Role.PRINTED),
    ]  # fmt: skip
    assert [y for y in series[2].y if math.isfinite(y)] == [0.9214, 0.6311, 0.57]
    assert dimension_series([]) == []


def test_pictures_without_numbers_are_not_written_and_old_ones_are_kept(copy: Path) -> None:
    result, _ = _competitor_arm(copy)
    layout, folder = ExperimentsLayout(copy), copy / "docs"
    folder.mkdir()
    (folder / "results-budget.svg").write_text("old")
    written = draw_all(run_maps(layout, [result]), [result], folder)
    assert written == [folder / "results-involute.svg"]
    names = _texts(_checked(written[0].read_bytes()))
    assert names[1:3] == ["true density", "Gaussian mixture"]
    assert sorted(path.name for path in folder.iterdir()) == ["results-budget.svg", "results-involute.svg"]
    assert (folder / "results-budget.svg").read_text() == "old"
    assert draw_all({}, [], folder) == []
    more = [_result("gmm-5", "nsf", spearman=0.9), _result("involute", "nsf", spearman=0.9)]
    assert [path.name for path in draw_all(run_maps(layout, more), more, folder)] == ["results-dimensions.svg"]
