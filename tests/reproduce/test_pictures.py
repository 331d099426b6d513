"""Maps of the experiments with two columns, and the pictures of the results."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import fake_model
from bayesnde_cli.cli.console import Console
from bayesnde_cli.competitors import Method, Tables, fit_competitor
from bayesnde_cli.competitors.plain import Fitted
from bayesnde_cli.reproduce import arms, pictures
from bayesnde_cli.reproduce.arms import run_reproduce
from bayesnde_cli.reproduce.experiments import BUDGETS, DIMENSIONS, EXPERIMENTS, Request, Result, prepare_settings
from bayesnde_cli.reproduce.pictures import DensityMap, map_simulator, read_map
from bayesnde_cli.reproduce.results_page import write_pictures
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import ExperimentsLayout
from bayesnde_cli.settings import resolve
from bayesnde_cli.settings.stage_settings import EvaluateSettings
from made_results import result_of
from png_pixels import decode_png

SVG = "{http://www.w3.org/2000/svg}"
INVOLUTE = EXPERIMENTS["involute"]
N_ROWS = 600
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The map of an arm of a Gaussian mixture."""
    root = tmp_path_factory.mktemp("fitted")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arms, "SIMULATED_ROWS", N_ROWS)
        (result,) = run_reproduce(root, INVOLUTE, Request(methods=("gaussian_mixture",), test_rows=40), QUIET).results
    return ExperimentsLayout(root).arm(*result.key).map_file


def _own_map(root: Path, *settings: str) -> DensityMap:
    """The map of an arm of ours whose rows are prepared, and whose model is a stand-in."""
    arm = arms.Arm(ExperimentsLayout(root), INVOLUTE, "default", 0, Request(test_rows=40))
    arms.prepare_rows(arm.folder.run, arm.data_files(), prepare_settings(INVOLUTE, 40, settings), QUIET)
    config = resolve(EvaluateSettings, flags={}, environ={}, assignments=["evaluate.seed=0"])
    pictures.write_own_map(arm.folder, config)
    return read_map(arm.folder.map_file)


def _cell(found: DensityMap) -> float:
    return float((found.x1[1] - found.x1[0]) * (found.x2[1] - found.x2[0]))


# Maps


def test_a_map_is_that_of_the_fitted_density(fitted: Path) -> None:
    found, simulator = read_map(fitted), map_simulator(INVOLUTE)
    assert simulator is not None
    assert found.log_density.shape == (50, 50)
    # The box of the training rows and a margin holds nearly all of the probability.
    assert 0.95 < found.density.sum() * _cell(found) < 1.02
    truth = found.with_values(simulator.log_density(found.points))
    turned = found.with_values(found.log_density.T)
    ours, other = found.spearman(truth), turned.spearman(truth)
    assert ours is not None
    assert other is not None
    assert ours > 0.9 > other


def test_points_are_scored_apart_from_the_test_rows() -> None:
    def batch_dependent(train: Rows, validation: Rows, seed: int) -> Fitted:
        return Fitted(lambda rows: rows.x[:, 0] + rows.x.mean(), {})

    rng = np.random.default_rng(0)
    train, test, more = (Rows(rng.normal(3.0, 2.0, (n, 2))) for n in (50, 7, 5))
    spaces = {"file": Tables(train, train, test)}
    found = fit_competitor("odd", spaces, seed=0, methods={"odd": Method(batch_dependent)})
    np.testing.assert_array_equal(found.log_density_of(spaces), found.log_density)
    # Control: scored together with other points, the test rows would get other values.
    both = Rows(np.concatenate([test.x, more.x]))
    assert not np.allclose(found.log_density_of({"file": Tables(train, train, both)})[:7], found.log_density)


def test_our_map_has_the_box_of_all_arms_and_the_units_of_the_file(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arms, "SIMULATED_ROWS", N_ROWS)
    fake_model.install(monkeypatch, fake_model.NormalModel(n_columns=2))
    plain = _own_map(tmp_path / "plain")
    assert plain.has_points_of(read_map(fitted))
    normal = -0.5 * (plain.points**2).sum(axis=1) - math.log(2 * math.pi)
    np.testing.assert_allclose(plain.log_density.ravel(), normal, atol=1e-4)
    scaled = _own_map(tmp_path / "scaled", "prepare.scale=standard", "prepare.scale_on=train")
    # A normal with the rows' own spread, cut at their box; without the Jacobian it would be about 9 times as much.
    assert 0.7 < scaled.density.sum() * _cell(scaled) < 1.0


def test_experiments_with_two_known_columns_have_maps() -> None:
    with_maps = [name for name, experiment in EXPERIMENTS.items() if map_simulator(experiment) is not None]
    assert with_maps == ["involute", "gmm-2", "ablation-2d"]


def test_ranks_count_a_density_of_zero_and_leave_nan_out() -> None:
    truth = _map([[1.0, 2.0], [3.0, 4.0]])
    assert _map([[-math.inf, 0.0], [1.0, 9.0]]).spearman(truth) == pytest.approx(1.0)
    assert _map([[5.0, 0.0], [-1.0, -math.inf]]).spearman(truth) == pytest.approx(-1.0)
    assert _map([[math.nan, 0.0], [1.0, 9.0]]).spearman(truth) == pytest.approx(1.0)
    assert _map([[2.0, 2.0], [2.0, 2.0]]).spearman(truth) is None


# Pictures


def _map(log_density: Sequence[Sequence[float]] | np.ndarray) -> DensityMap:
    values = np.asarray(log_density, np.float64)
    return DensityMap(np.arange(float(values.shape[0])), np.arange(float(values.shape[1])), values)


def _hill(height: float = 1.0, shift: float = 0.0) -> DensityMap:
    side = np.linspace(-3.0, 3.0, 20)
    normal = -0.5 * np.add.outer(side**2, side**2)
    return DensityMap(side + shift, side, normal + math.log(height))


def _check(picture: bytes | None) -> ElementTree.Element:
    """The picture, if it is well-formed, has neither NaN nor infinity, and loads nothing from elsewhere."""
    assert picture is not None
    root = ElementTree.fromstring(picture)
    assert (root.tag, root.get("width")) == (f"{SVG}svg", "900")
    for element in root.iter():
        assert element.tag not in (f"{SVG}script", f"{SVG}foreignObject")
        for name, value in element.attrib.items():
            if name == "href":
                assert value.startswith(("data:image/png;base64,", "#"))
            else:
                assert not re.search(r"nan|inf", value, re.IGNORECASE), (element.tag, name, value)
    return root


def _texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def _images(root: ElementTree.Element) -> list[str]:
    return [element.attrib["href"] for element in root.iter(f"{SVG}image")]


def _lines(root: ElementTree.Element, width: float) -> list[str]:
    """The paths of lines of this width."""
    return [path.attrib["d"] for path in root.iter(f"{SVG}path") if f"stroke-width: {width}" in path.get("style", "")]


def test_the_check_of_a_picture_can_fail() -> None:
    start = '<svg xmlns="http://www.w3.org/2000/svg" width="900">'
    for inner in ('<path d="M1 nanL2 3"/>', '<image href="https://example.org/a.png"/>', "<script/>"):
        with pytest.raises(AssertionError):
            _check(f"{start}{inner}</svg>".encode())


def test_maps_have_each_name_once_and_one_colour_scale() -> None:
    odd = 'a <b> & "c"'
    maps = {"true density": _hill(), "same": _hill(), "half": _hill(0.5), odd: _map(np.full((20, 20), -math.inf))}
    root = _check(pictures.draw_maps("Two <columns>", maps))
    texts = _texts(root)
    assert all(texts.count(name) == 1 for name in (*maps, "Two <columns>"))
    found = [text.removeprefix("Spearman ") for text in texts if text.startswith("Spearman ")]
    assert found == ["1.000", "1.000", "–"]
    truth, same, half, nothing, _scale = _images(root)
    assert truth == same
    assert len({truth, half, nothing}) == 3  # with a scale of its own, the half would look like the whole


def test_the_first_column_runs_to_the_right_and_the_second_upwards() -> None:
    log_density = np.full((20, 20), -9.0)
    log_density[-1, :8] = 0.0  # x1 at its highest, x2 low
    root = _check(pictures.draw_maps("Maps", {"true": replace(_hill(), log_density=log_density)}))
    image = next(root.iter(f"{SVG}image"))
    scale_y = float(re.findall(r"-?[\d.]+", image.attrib["transform"])[3])
    pixels = decode_png(image.attrib["href"])
    is_bright = (pixels if scale_y > 0 else pixels[::-1])[..., 0] > 200  # the first row at the top
    assert is_bright.shape == (20, 20)
    assert is_bright[-8:, -1].all()
    assert is_bright.sum() == 8


def test_a_spike_does_not_spoil_the_colours() -> None:
    log_density = _hill().log_density.copy()
    log_density[0, 0] = 5000.0
    maps = {"true": _hill(), "spiky": replace(_hill(), log_density=log_density)}
    alone, both = (_check(pictures.draw_maps("Maps", shown)) for shown in ({"true": _hill()}, maps))
    assert _images(alone)[0] == _images(both)[0]


def test_an_experiment_shows_its_first_seeds_on_one_grid() -> None:
    maps = {
        ("involute", "maf", 10): _hill(),
        ("involute", "default", 1): _hill(),
        ("involute", "nsf", 0): _hill(shift=1.0),  # fitted to other rows
        ("gmm-2", "made", 0): _hill(),
    }
    names = ("true density", "ours, default", "MAF", "NSF", "MADE")
    picture = pictures.draw_experiment(INVOLUTE, maps)
    assert [text for text in _texts(_check(picture)) if text in names] == list(names[:3])
    earlier = {**maps, ("involute", "maf", 9): _hill(0.5)}
    assert pictures.draw_experiment(INVOLUTE, earlier) != picture
    assert pictures.draw_experiment(INVOLUTE, {}) is None


def test_lines_by_dimension_are_named_once_apart_from_each_other_and_break_at_gaps() -> None:
    first = EXPERIMENTS["gmm-2"]
    methods = [name for name in (*first.recipes, *first.methods) if name != "made"]
    results = [
        result_of(f"gmm-{dim}", method, figures={"spearman": None if (method, dim) == ("maf", 10) else 0.9})
        for method in methods
        for dim in DIMENSIONS
    ]
    results.append(result_of("ablation-2d", "paper-no-warm-start"))  # in the same folder
    root = _check(pictures.draw_dimensions(results))
    names = [*map(first.method_name, methods), "in the paper"]
    texts = _texts(root)
    assert all(texts.count(name) == 1 for name in names)
    assert not {"MADE", "ours, paper-no-warm-start"} & set(texts)
    heights = sorted(float(e.attrib["y"]) for e in root.iter(f"{SVG}text") if e.text in names)
    assert min(np.diff(heights)) >= 15
    assert 10 < min(heights) < max(heights) < float(root.attrib["height"]) - 40
    # Each line once more in the legend.
    assert len(_lines(root, 3.6)) == 2 * 2
    assert sorted(path.count("M") for path in _lines(root, 1.6)) == [1] * (2 * len(methods) - 5) + [2]
    diamonds = [use for use in root.iter(f"{SVG}use") if "fill: #ffffff" in use.get("style", "")]
    assert len(diamonds) == 3 + 1  # the paper has a figure of 2, 15 and 20 columns


def test_the_budget_curve_has_error_bars_where_there_are_several_seeds() -> None:
    def results(n_seeds: int) -> list[Result]:
        values = [(budget, seed) for budget in BUDGETS for seed in range(n_seeds)]
        inner = {"spearman": 0.5, "mean_log_density": -2.0, "error": 0.1}
        return [
            result_of(
                "budget-sweep",
                f"budget-{budget}",
                seed,
                figures={"spearman": 0.9991 + 2e-5 * seed, "importance": inner, "mean_mc_se": 1 / budget},
            )
            for budget, seed in values
        ]

    root = _check(pictures.draw_budgets(results(3)))
    assert len(_lines(root, 1.6)) == 3 * len(BUDGETS)
    texts = _texts(root)
    assert [texts.count(name) for name in ("bridge", "importance sampling", "100", "1,600")] == [1, 1, 2, 2]
    assert not any(re.fullmatch(r"[-\d.]+e-?\d+", text) for text in texts)
    steps = np.diff([float(place.split()[0]) for place in re.split("[ML]", _lines(root, 2.4)[0])[1:]])
    np.testing.assert_allclose(steps, steps[0], atol=0.2)  # doublings are equal steps: the axis is logarithmic
    assert not _lines(_check(pictures.draw_budgets(results(1)[:1])), 1.6)
    assert pictures.mean_over_seeds([0.7, 0.8, 0.9]) == pytest.approx((0.8, 0.1 / math.sqrt(3)))


def test_pictures_without_numbers_are_not_written_and_old_ones_are_kept(tmp_path: Path) -> None:
    (tmp_path / "results-budget.svg").write_text("old")
    written = write_pictures({("involute", "maf", 0): _hill()}, [result_of("gmm-5", "nsf")], tmp_path)
    assert [path.name for path in written] == ["results-involute.svg", "results-dimensions.svg"]
    assert (tmp_path / "results-budget.svg").read_text() == "old"
    assert write_pictures({}, [], tmp_path) == []
