"""All results on one page: what is kept, what is replaced, what is refused, and commands that make each row again."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bayesnde_cli.artifacts.experiments_layout import ExperimentsLayout
from bayesnde_cli.artifacts.layout import TEST_SET
from bayesnde_cli.artifacts.tables import write_table
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.stages import reproduce
from bayesnde_cli.stages.reproduce.collecting import merge
from bayesnde_cli.stages.reproduce.experiments import EXPERIMENTS, Experiment
from bayesnde_cli.stages.reproduce.result import Result, result_from, write_result
from bayesnde_cli.stages.reproduce.results_page import results_page
from bayesnde_cli.stages.reproduce.scores import SCORES_SCHEMA, SCORES_VERSION
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION

ROWS, OTHER_ROWS = "a" * 64, "b" * 64


def _of(experiment: str, method: str, seed: int = 0, *, figures: dict[str, Any] | None = None, **more: Any) -> Result:
    whole = EXPERIMENTS[experiment]
    is_own = any(method in other.recipes for other in EXPERIMENTS.values() if other.folder_name == whole.folder_name)
    plain = {"n": 500, "n_not_finite": 0, "mean_log_density": -2.0, "mean_log_density_se": 0.1, "spearman": 0.9}
    plain |= {"precision_at_k": 0.5, "auroc": 0.8}
    if is_own:
        plain |= {"mean_mc_se": 0.02, "n_reliable": 499, "importance": {"spearman": 0.8, "mean_log_density": -2.5}}
        plain["error"] = plain["importance"]["error"] = 0.1
    fields: dict[str, Any] = {
        "experiment": whole.folder_name, "method": method, "is_own": is_own, "seed": seed, "settings": [],
        "test_rows": whole.test_rows, "figures": plain | (figures or {}), "chosen": {}, "rows_sha256": ROWS,
        "seconds_fit": 60.0, "seconds_score": 12.0, "device": "cpu", "ended": "2025-01-01T00:00:00+00:00",
        "version": "0",
    }  # fmt: skip
    return Result(**fields | more)


def _put(root: Path, result: Result, log_density: np.ndarray | None = None) -> None:
    """A result in its folder, with the log-densities that it comes from."""
    arm = ExperimentsLayout(root).arm(result.experiment, result.method, result.seed)
    path, name, version = arm.scores_file, SCORES_SCHEMA, SCORES_VERSION
    if result.is_own:
        path, name, version = arm.run.density_file(TEST_SET), DENSITY_SCHEMA, DENSITY_VERSION
    values = np.zeros(3) if log_density is None else log_density
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"row_id": np.arange(len(values)), "log_density": values})
    write_table(path, table, schema_name=name, schema_version=version, run_id="0" * 16)
    write_result(arm.result_file, result)


def _section(page: str, name: str) -> list[list[str]]:
    """The cells of the table of an experiment, header first."""
    text = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [re.split(r" (?<!\\)\| ", line[2:-2]) for line in lines if not line.startswith("| ---")]


@pytest.fixture
def collect(bayesnde: Callable, tmp_path: Path) -> Callable[..., dict]:
    def call(run: str) -> dict:
        arguments = ["reproduce", "--collect", "--run", tmp_path / run, "--out", tmp_path / "docs/page.md", "--json"]
        outcome = bayesnde(*arguments)
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)

    return call


def test_older_results_are_kept_and_newer_ones_replace_them(collect: Callable, tmp_path: Path) -> None:
    old, later = _of("involute", "maf", figures={"spearman": 0.1}), "2025-01-02T00:00:00+00:00"
    _put(tmp_path / "one", old)
    _put(tmp_path / "one", _of("bank", "nsf"))
    _put(tmp_path / "two", replace(old, figures=old.figures | {"spearman": 0.2}, ended=later))
    page = str(tmp_path / "docs/page.md")
    assert collect("one") == {"page": page, "n_results": 2, "n_new": 2}
    assert collect("two") == {"page": page, "n_results": 2, "n_new": 1}
    stored = json.loads((tmp_path / "docs/page.json").read_text())
    assert (stored["schema"], stored["schema_version"]) == ("experiment_results", 1)
    assert [(r["experiment"], r["figures"]["spearman"]) for r in stored["results"]] == [
        ("involute", 0.2),
        ("bank", 0.9),
    ]
    assert "0.2000" in Path(page).read_text()
    # The older one, collected once more, does not come back.
    assert collect("one")["n_new"] == 1
    assert json.loads((tmp_path / "docs/page.json").read_text()) == stored


def test_results_are_in_the_order_of_experiments_then_ours_methods_and_seeds() -> None:
    arms = [
        ("involute", "default", 0), ("involute", "paper", 0), ("involute", "maf", 1), ("involute", "maf", 2),
        ("involute", "nsf", 0), ("gmm-15", "default", 0), ("gmm-15", "budget-100", 0), ("bank", "maf", 0),
    ]  # fmt: skip
    results = [_of("budget-sweep" if "budget" in method else name, method, seed) for name, method, seed in arms]
    unknown = replace(results[0], experiment="of-another-version")
    found = [result.key for result in merge(reversed(results), [unknown])]
    assert found == [*arms[:5], arms[6], arms[5], arms[7], unknown.key]


def test_rows_that_are_not_the_same_are_refused(bayesnde: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "r", _of("involute", "default"))
    _put(tmp_path / "r", _of("involute", "maf", 3, rows_sha256=OTHER_ROWS))
    arguments = ["reproduce", "--collect", "--run", tmp_path / "r", "--out", tmp_path / "docs/page.md"]
    assert bayesnde(*arguments) == (
        3,
        "",
        "error: involute: maf and default were not evaluated on the same rows\n"
        f"  maf, seed 3: 500 rows, {OTHER_ROWS}\n  default, seed 0: 500 rows, {ROWS}\n"
        "hint: run one of them again as the other was run (--test-rows, version), with --restart\n",
    )
    assert not (tmp_path / "docs").exists()
    # Control: the same rows are no reason.
    _put(tmp_path / "r", _of("involute", "maf", 3))
    assert bayesnde(*arguments).code == 0


def test_a_result_of_an_experiment_that_is_not_known_is_kept(collect: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "r", replace(_of("involute", "maf"), experiment="of-another-version"))
    assert collect("r")["n_results"] == 1


def test_what_is_no_collection_is_not_written_over(bayesnde: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "r", _of("involute", "maf"))
    (tmp_path / "page.json").write_text('{"schema":"mine","schema_version":1}')
    assert bayesnde("reproduce", "--collect", "--run", tmp_path / "r", "--out", tmp_path / "page.md") == (
        3,
        "",
        f"error: {tmp_path}/page.json holds no results of experiments\n  another document\n"
        "hint: name another page with --out\n",
    )
    assert not (tmp_path / "page.md").exists()


def test_the_gain_is_the_mean_difference_of_the_same_rows(collect: Callable, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=20), rng.normal(size=20)
    theirs[[3, 7]] = -np.inf
    _put(tmp_path / "r", _of("involute", "default"), ours)
    _put(tmp_path / "r", _of("involute", "default", 1), ours + 5)  # not the first seed: nothing is held against it
    _put(tmp_path / "r", _of("involute", "maf", figures={"n_not_finite": 2}), theirs)
    _put(tmp_path / "r", _of("involute", "made", figures={"mean_log_density": None}), theirs)
    collect("r")
    found = {
        (r["method"], r["seed"]): r["figures"] for r in json.loads((tmp_path / "docs/page.json").read_text())["results"]
    }
    differences = [a - b for a, b in zip(ours, theirs, strict=True) if np.isfinite(b)]
    gain = sum(differences) / 18
    variance = sum((d - gain) ** 2 for d in differences) / 17
    assert found["maf", 0]["gain"] == pytest.approx(gain)
    assert found["maf", 0]["gain_se"] == pytest.approx((variance / 18) ** 0.5)
    assert found["default", 1]["gain"] == pytest.approx(-5.0)
    assert all("gain" not in found[arm] for arm in (("default", 0), ("made", 0)))
    table = {row[0]: row for row in _section((tmp_path / "docs/page.md").read_text(), "involute")}
    place = table["method"].index("ours above it by")
    assert table["MAF"][place] == f"{gain:.2f} ± {(variance / 18) ** 0.5:.2f}"  # an error of 0.3: two digits
    assert table["MAF"][place - 1] == "-2.00 ± 0.10, without 2 rows at -∞"
    assert table["MADE"][place] == ""


@pytest.mark.parametrize(
    ("gain", "se", "shown"),
    [
        (0.00031, 0.00018, "0.0003 ± 0.0002"), (-0.000002, 0.0007, "0.0000 ± 0.0007"),
        (-0.0038, 0.0048, "-0.0038 ± 0.0048"), (0.4563, 0.0346, "0.456 ± 0.035"), (2.366, 0.0996, "2.37 ± 0.10"),
        (5.5, 1.234, "5.50 ± 1.23"), (0.5, 0.0, "0.50 ± 0.00"), (0.5, None, "0.50"), (-0.001, None, "0.00"),
    ],
)  # fmt: skip
def test_a_gain_has_as_many_digits_as_its_error(gain: float, se: float | None, shown: str, tmp_path: Path) -> None:
    results = [_of("bank", "default"), _of("bank", "maf", figures={"gain": gain, "gain_se": se})]
    header, _, line, *_ = _section(results_page(results, tmp_path), "bank")
    assert line[header.index("ours above it by")] == shown


def _everything() -> list[Result]:
    """A result of every arm of every experiment; some were run otherwise."""
    results = {}
    for name, experiment in EXPERIMENTS.items():
        for method in (*experiment.recipes, *experiment.methods):
            for seed in experiment.seeds:
                results[experiment.folder_name, method, seed] = _of(name, method, seed)
    odd = [
        _of("involute", "paper", 4, settings=["prepare.features=a|b c", "density.draws=3"]),
        _of("involute", "default", 7, test_rows=30),
        _of("shuttle", "maf", 9, test_rows=30),
        _of("bank", "nsf", 1),
        _of("gmm-15", "default", 1),
    ]
    return merge(results.values(), odd)


def test_every_row_has_the_command_that_makes_it_again(
    bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Experiment, reproduce.Asked]] = []

    def note(root: Path, experiment: Experiment, wanted: reproduce.Asked, report: object) -> reproduce.Reproduced:
        asked.append((experiment, wanted))
        return reproduce.Reproduced(experiment, [])

    monkeypatch.setattr(reproduce, "run_reproduce", note)
    results = _everything()
    page = results_page(results, tmp_path)
    again = set()
    for name, experiment in EXPERIMENTS.items():
        header, *lines = _section(page, name)
        assert all(len(line) == len(header) for line in lines), name
        own = [r for r in results if r.experiment == experiment.folder_name]
        for line in lines:
            for command in re.findall("`([^`]+)`", line[-1].replace("\\|", "|")):
                asked.clear()
                assert bayesnde(*shlex.split(command)[1:], "-q").code == 0, command
                ((named, wanted),) = asked
                assert named == experiment
                arms = reproduce.arms_of(named, wanted)
                assert len({method for method, _ in arms}) == 1
                for method, seed in arms:
                    (result,) = [r for r in own if (r.method, r.seed) == (method, seed)]
                    assert list(wanted.settings) == result.settings
                    assert (wanted.test_rows or named.test_rows) == result.test_rows
                    again.add(result.key)
    assert again == {result.key for result in results}


def test_a_table_has_as_many_cells_in_each_row_whatever_was_run(tmp_path: Path) -> None:
    for name, experiment in EXPERIMENTS.items():
        for method in (*experiment.recipes, *experiment.methods):
            header, *lines = _section(results_page([_of(name, method)], tmp_path), name)
            assert {len(line) for line in lines} == {len(header)}, (name, method)


def test_what_was_not_run_is_said_with_its_command(tmp_path: Path) -> None:
    page = results_page([_of("involute", "default")], tmp_path)
    table = {row[0]: row for row in _section(page, "involute")}
    assert table["ours, paper"][1:3] == ["not run", "0.9590"]
    assert table["ours, paper"][-1] == "`bayesnde reproduce involute --recipe paper`"
    assert table["Roundtrip"][-1] == "`bayesnde reproduce involute --method roundtrip`"
    assert "\n## gmm-15\n" in page
    assert "Not run yet: `bayesnde reproduce gmm --dim 15`." in page


def test_methods_that_are_in_no_line_of_the_table_are_named_below_it(tmp_path: Path) -> None:
    (tmp_path / "results-involute.svg").write_text("<svg/>")
    page = results_page([_of("involute", "default"), _of("involute", "maf")], tmp_path)
    below = page.partition("\n## involute\n")[2].partition("\n## ")[0].rpartition(" |\n\n")[2]
    # The paper has a figure of its own recipe and of Roundtrip: these have their lines.
    assert below == (
        "Not run: Gaussian, Gaussian mixture, kernel density, MADE, Real NVP, NSF, flow matching (CFM), Residual Flow."
        "\n\n![a spiral in two columns](results-involute.svg)\n"
    )
    page = results_page([_of("bank", "default"), _of("budget-sweep", "budget-100")], tmp_path)
    assert "\n\nNot run: ours, paper; Gaussian; Gaussian mixture; kernel density; MADE; MAF;" in page
    assert "\n\nNot run: ours, budget-200; ours, budget-400; ours, budget-800; ours, budget-1600.\n" in page
    # Control: where all of them were run, there is nothing to say.
    assert "Not run" not in results_page(_everything(), tmp_path)


def test_several_seeds_are_shown_with_their_mean_and_missing_figures_with_a_dash(tmp_path: Path) -> None:
    figures = [{"precision_at_k": value, "mean_log_density": None} for value in (0.25, 0.5, 1.0)]
    results = [_of("shuttle", "maf", seed, figures=found) for seed, found in zip((0, 3, 7), figures, strict=True)]
    results += [_of("shuttle", "nsf", 3, figures={"precision_at_k": None})]
    results += [_of("shuttle", "made", seed, figures={"auroc": [0.5, None][seed]}) for seed in (0, 1)]
    table = {row[0]: row for row in _section(results_page(results, tmp_path), "shuttle")}
    assert table["MAF"][1:3] == ["0.5833 (0.2500, 0.5000, 1.0000)", "0.8610"]
    assert table["MAF"][-3:] == ["0, 3, 7", "1 min 12 s", "`bayesnde reproduce shuttle --method maf`"]
    assert table["NSF"][1] == "–"
    assert table["NSF"][-1] == "`bayesnde reproduce shuttle --method nsf --seeds 3`"
    assert table["MADE"][3] == "0.5000 (0.5000, –)"


def test_of_ours_it_is_told_how_many_rows_can_be_relied_on(tmp_path: Path) -> None:
    results = [
        _of("cardio", "outliers", seed, figures={"n": 1000, "n_reliable": n}) for seed, n in ((0, 1000), (3, 999))
    ]
    page = results_page(
        [*results, _of("cardio", "distance"), _of("bank", "default", figures={"n_reliable": 500})], tmp_path
    )
    column = _section(page, "cardio")[0].index("test rows")
    assert [row[column] for row in _section(page, "cardio")[1:3]] == ["1,000, 99 % reliable", "500"]
    column = _section(page, "bank")[0].index("test rows")
    assert _section(page, "bank")[1][column] == "500, 100 % reliable"


@pytest.mark.parametrize(
    ("shares", "shown"),
    [
        ([0.612], "500, 38 % with an error below 0.3"), ([0.71], "500, 29 % with an error below 0.3"),
        ([0.0], "500, 100 % with an error below 0.3"), ([0.002], "500, 99 % with an error below 0.3"),
        ([0.2, 0.4], "500, 70 % with an error below 0.3"), ([0.2, None], "500"),
    ],
)  # fmt: skip
def test_of_roundtrip_it_is_told_how_many_rows_have_a_small_error(
    shares: list[float | None], shown: str, tmp_path: Path
) -> None:
    chosen: list[dict[str, Any]] = [{} if share is None else {"share_above_0.3": share} for share in shares]
    results = [_of("bank", "roundtrip", seed, chosen=found) for seed, found in enumerate(chosen)]
    header, line, *_ = _section(results_page(results, tmp_path), "bank")
    assert line[header.index("test rows")] == shown


@pytest.mark.parametrize("n_reliable", [29, 57, 58])  # 100 times the quotient is a little less than they are
def test_a_percentage_is_counted_in_whole_rows(n_reliable: int, tmp_path: Path) -> None:
    page = results_page([_of("bank", "default", figures={"n": 100, "n_reliable": n_reliable})], tmp_path)
    header, line, *_ = _section(page, "bank")
    assert line[header.index("test rows")] == f"100, {n_reliable} % reliable"


def test_competitors_stand_below_ours_the_best_first(tmp_path: Path) -> None:
    means = {"maf": 3.0, "nsf": 7.0, "made": 5.0, "default": 1.0}
    results = [_of("bank", name, figures={"mean_log_density": mean}) for name, mean in means.items()]
    names = [row[0] for row in _section(results_page(results, tmp_path), "bank")]
    assert names[:5] == ["method", "**ours, default**", "NSF", "MADE", "MAF"]


def test_budgets_and_times_are_worked_out_from_all_that_was_run(tmp_path: Path) -> None:
    bridge, importance = (0.6, 0.7, 0.65), (0.5, 0.65, 0.5)
    results = [
        _of("budget-sweep", "budget-100", seed, figures={"spearman": a, "importance": {"spearman": b, "error": 0.2}})
        for seed, (a, b) in enumerate(zip(bridge, importance, strict=True))
    ]
    results += [_of("bank", "default"), _of("bank", "maf", seconds_fit=30.0, seconds_score=6.0)]
    page = results_page(results, tmp_path)
    gains = np.subtract(bridge, importance)
    shown = [f"{np.mean(v):.4f} ± {np.std(v, ddof=1) / 3**0.5:.4f}" for v in (bridge, importance, gains)]
    assert _section(page, "budget-sweep")[1] == [
        "100", *shown, "0.5804", "0.5270", "0.1000 ± 0.0000", "0.2000 ± 0.0000", "0.0200",
        "`bayesnde reproduce budget-sweep --recipe budget-100`",
    ]  # fmt: skip
    everything = _section(results_page(_everything(), tmp_path), "budget-sweep")
    at = everything[0].index("importance sampling in the paper")
    assert [row[at - 1 : at + 1] for row in everything[1:]] == [
        ["0.5804", "0.5270"], ["0.6034", "0.5501"], ["0.6311", "0.5932"], ["0.6300", "0.6014"], ["0.6207", "0.6039"],
    ]  # fmt: skip
    times = {row[0]: row[1:7] for row in _section(page, "timing")}
    assert times["method"][3:] == ["as a ratio to ours", "in the paper (GPU)", "as a ratio to the paper's own"]
    assert times["MAF"] == ["30 s", "6 s", "36 s", "0.50", "2 min 36 s", "0.04"]
    assert times["**ours, default**"][3:] == ["1.00", "", ""]


def test_only_the_paper_s_recipe_has_a_figure_of_the_paper_without_the_bridge(tmp_path: Path) -> None:
    table = {row[0]: row for row in _section(results_page(_everything(), tmp_path), "ablation-15d")}
    without = "importance sampling instead of the bridge"
    assert [table[f"{name}, {without}"][2] for name in ("ours, paper", "**ours, default**")] == ["0.5932", ""]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0.00"), (0.00011, "0.000011"), (0.0567, "0.0057"), (0.0996, "0.010"), (0.14, "0.01"), (123.4, "12.34")],
)
def test_small_ratios_of_times_have_two_digits(seconds: float, shown: str, tmp_path: Path) -> None:
    ours, theirs = ({"seconds_fit": value, "seconds_score": 0.0} for value in (10.0, seconds))
    results = [_of("bank", "default", **ours), _of("bank", "maf", **theirs), _of("bank", "paper", **ours)]
    times = {row[0]: row[4:7] for row in _section(results_page(results, tmp_path), "timing")}
    assert times["MAF"] == [shown, "2 min 36 s", "0.04"]
    assert times["ours, paper"] == ["1.00", "1 h 4 min", "1.00"]


def test_words_and_pictures_of_the_folder_are_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results/introduction.md").write_text("# All of it\n")
    (tmp_path / "results/involute.md").write_text("A spiral is hard.\n")
    (tmp_path / "results-budget.svg").write_text("<svg/>")
    page = results_page([], tmp_path)
    assert page.startswith(
        "# All of it\n\n## involute\n\nA spiral in two columns.\n\nA spiral is hard.\n\nNot run yet: "
    )
    assert page.count("![") == 1
    assert "draws, 15 columns](results-budget.svg)" in page
    assert results_page([], tmp_path / "none").startswith("# Results\n")


def test_a_time_is_told_beside_the_paper_s_time() -> None:
    text = str(reproduce.Reproduced(EXPERIMENTS["timing"], [_of("bank", "paper")]))
    header, line = text.splitlines()
    assert header.split()[:3] == ["timing", "seed", "seconds"]
    assert line.split()[:4] == ["paper", "0", "72.00", "3852.00"]


def test_a_gain_over_another_fit_of_ours_is_forgotten(collect: Callable, tmp_path: Path) -> None:
    rows = np.arange(20.0)
    _put(tmp_path / "first", _of("involute", "default"), rows + 1)
    _put(tmp_path / "first", _of("involute", "maf"), rows)
    collect("first")
    _put(tmp_path / "second", _of("involute", "default", ended="2099-01-01T00:00:00+00:00"), rows + 2)
    collect("second")
    results = json.loads((tmp_path / "docs/page.json").read_text())["results"]
    assert [(r["method"], "gain" in r["figures"]) for r in results] == [("default", False), ("maf", False)]


def _gains(tmp_path: Path) -> dict[str, float]:
    """The gains that are stored, by method."""
    results = json.loads((tmp_path / "docs/page.json").read_text())["results"]
    return {r["method"]: r["figures"]["gain"] for r in results if "gain" in r["figures"]}


def test_no_gain_is_over_a_fit_of_ours_that_is_not_kept(collect: Callable, tmp_path: Path) -> None:
    rows = np.arange(20.0)
    _put(tmp_path / "newer", _of("involute", "default", ended="2099-01-01T00:00:00+00:00"), rows + 2)
    collect("newer")
    _put(tmp_path / "older", _of("involute", "default"), rows + 1)
    _put(tmp_path / "older", _of("involute", "maf"), rows)
    collect("older")
    assert _gains(tmp_path) == {}
    # Control: beside the fit that is kept there is one.
    _put(tmp_path / "newer", _of("involute", "maf"), rows)
    collect("newer")
    assert _gains(tmp_path) == {"maf": 2.0}


def test_a_gain_over_the_same_fit_of_ours_is_kept(collect: Callable, tmp_path: Path) -> None:
    rows = np.arange(20.0)
    _put(tmp_path / "both", _of("involute", "default"), rows + 1)
    _put(tmp_path / "both", _of("involute", "maf"), rows)
    collect("both")
    _put(tmp_path / "ours", _of("involute", "default"), rows + 1)
    _put(tmp_path / "theirs", _of("involute", "maf"), rows)
    for run in ("ours", "theirs"):  # the same fits once more, without the other one
        collect(run)
        assert _gains(tmp_path) == {"maf": 1.0}
    # Another seed of ours is nothing that a gain is over.
    _put(tmp_path / "seed", _of("involute", "default", 1, ended="2099-01-01T00:00:00+00:00"), rows)
    collect("seed")
    assert _gains(tmp_path) == {"maf": 1.0}
    # A newer fit of theirs has no gain until it lies beside ours.
    _put(tmp_path / "theirs", _of("involute", "maf", ended="2099-01-01T00:00:00+00:00"), rows)
    collect("theirs")
    assert _gains(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "0"), ("figures", []), ("figures", {}), ("figures", {"n": 3, "spearman": "x"}), ("seconds_fit", None),
        ("settings", "a"),
    ],
)  # fmt: skip
def test_a_result_with_a_field_of_another_kind_is_refused(name: str, value: object, tmp_path: Path) -> None:
    found = _of("involute", "maf").as_dict()
    assert result_from(found, tmp_path).key == ("involute", "maf", 0)
    with pytest.raises(BadArtifact, match="is no result of an experiment"):
        result_from(found | {name: value}, tmp_path)


@pytest.mark.parametrize("results", ["[1]", "{}", "null"])
def test_a_store_that_is_damaged_is_refused_and_left_as_it_is(results: str, bayesnde: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "r", _of("involute", "maf"))
    text = f'{{"schema":"experiment_results","schema_version":1,"results":{results}}}'
    (tmp_path / "page.json").write_text(text)
    outcome = bayesnde("reproduce", "--collect", "--run", tmp_path / "r", "--out", tmp_path / "page.md")
    assert (outcome.code, outcome.out) == (3, "")
    assert (tmp_path / "page.json").read_text() == text


def test_a_page_below_a_file_cannot_be_written(bayesnde: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "r", _of("involute", "maf"))
    (tmp_path / "afile").touch()
    outcome = bayesnde("reproduce", "--collect", "--run", tmp_path / "r", "--out", tmp_path / "afile/page.md")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert "hint: " in outcome.err


def test_the_page_of_the_docs_is_the_one_that_its_results_and_words_give(bayesnde: Callable, tmp_path: Path) -> None:
    docs, copied = Path(__file__).parents[2] / "docs", tmp_path / "docs"
    copied.mkdir()
    for path in docs.glob("results*"):
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, copied / path.name)
    before = _files(copied)
    arguments = ["reproduce", "--collect", "--run", tmp_path / "none", "--out", copied / "results.md", "-q"]
    assert bayesnde(*arguments).code == 0
    after = _files(copied)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    assert not changed, f"{', '.join(changed)}: run `bayesnde reproduce --collect` and commit what it writes"
    # Control: words that are not on the page yet show.
    (copied / "results/introduction.md").write_text("# Other words\n")
    bayesnde(*arguments)
    found = {name for name, data in _files(copied).items() if before[name] != data}
    assert found == {"results.md", "results/introduction.md"}


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
