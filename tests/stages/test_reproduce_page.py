"""The page of all results: a table for each experiment, what each cell says, and the command of each row."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesnde_cli.stages import reproduce
from bayesnde_cli.stages.reproduce.collecting import merge
from bayesnde_cli.stages.reproduce.experiments import EXPERIMENTS, Experiment
from bayesnde_cli.stages.reproduce.result import Result
from bayesnde_cli.stages.reproduce.results_page import results_page
from made_results import result_of, table_of


@pytest.mark.parametrize(
    ("gain", "se", "shown"),
    [
        (0.00031, 0.00018, "0.0003 ± 0.0002"), (-0.000002, 0.0007, "0.0000 ± 0.0007"),
        (-0.0038, 0.0048, "-0.0038 ± 0.0048"), (0.4563, 0.0346, "0.456 ± 0.035"), (2.366, 0.0996, "2.37 ± 0.10"),
        (5.5, 1.234, "5.50 ± 1.23"), (0.5, 0.0, "0.50 ± 0.00"), (0.5, None, "0.50"), (-0.001, None, "0.00"),
    ],
)  # fmt: skip
def test_a_gain_has_as_many_digits_as_its_error(gain: float, se: float | None, shown: str, tmp_path: Path) -> None:
    results = [result_of("bank", "default"), result_of("bank", "maf", figures={"gain": gain, "gain_se": se})]
    header, _, line, *_ = table_of(results_page(results, tmp_path), "bank")
    assert line[header.index("ours above it by")] == shown


def _everything() -> list[Result]:
    """A result of every arm of every experiment; some were run otherwise."""
    results = {}
    for name, experiment in EXPERIMENTS.items():
        for method in (*experiment.recipes, *experiment.methods):
            for seed in experiment.seeds:
                results[experiment.folder_name, method, seed] = result_of(name, method, seed)
    odd = [
        result_of("involute", "paper", 4, settings=["prepare.features=a|b c", "density.draws=3"]),
        result_of("involute", "default", 7, test_rows=30),
        result_of("shuttle", "maf", 9, test_rows=30),
        result_of("bank", "nsf", 1),
        result_of("gmm-15", "default", 1),
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
        header, *lines = table_of(page, name)
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
            header, *lines = table_of(results_page([result_of(name, method)], tmp_path), name)
            assert {len(line) for line in lines} == {len(header)}, (name, method)


def test_what_was_not_run_is_said_with_its_command(tmp_path: Path) -> None:
    page = results_page([result_of("involute", "default")], tmp_path)
    table = {row[0]: row for row in table_of(page, "involute")}
    assert table["ours, paper"][1:3] == ["not run", "0.9590"]
    assert table["ours, paper"][-1] == "`bayesnde reproduce involute --recipe paper`"
    assert table["Roundtrip"][-1] == "`bayesnde reproduce involute --method roundtrip`"
    assert "\n## gmm-15\n" in page
    assert "Not run yet: `bayesnde reproduce gmm --dim 15`." in page


def test_methods_that_are_in_no_line_of_the_table_are_named_below_it(tmp_path: Path) -> None:
    (tmp_path / "results-involute.svg").write_text("<svg/>")
    page = results_page([result_of("involute", "default"), result_of("involute", "maf")], tmp_path)
    below = page.partition("\n## involute\n")[2].partition("\n## ")[0].rpartition(" |\n\n")[2]
    # The paper has a figure of its own recipe and of Roundtrip: these have their lines.
    assert below == (
        "Not run: Gaussian, Gaussian mixture, kernel density, MADE, Real NVP, NSF, flow matching (CFM), Residual Flow."
        "\n\n![a spiral in two columns](results-involute.svg)\n"
    )
    page = results_page([result_of("bank", "default"), result_of("budget-sweep", "budget-100")], tmp_path)
    assert "\n\nNot run: ours, paper; Gaussian; Gaussian mixture; kernel density; MADE; MAF;" in page
    assert "\n\nNot run: ours, budget-200; ours, budget-400; ours, budget-800; ours, budget-1600.\n" in page
    # Control: where all of them were run, there is nothing to say.
    assert "Not run" not in results_page(_everything(), tmp_path)


def test_several_seeds_are_shown_with_their_mean_and_missing_figures_with_a_dash(tmp_path: Path) -> None:
    figures = [{"precision_at_k": value, "mean_log_density": None} for value in (0.25, 0.5, 1.0)]
    results = [result_of("shuttle", "maf", seed, figures=found) for seed, found in zip((0, 3, 7), figures, strict=True)]
    results += [result_of("shuttle", "nsf", 3, figures={"precision_at_k": None})]
    results += [result_of("shuttle", "made", seed, figures={"auroc": [0.5, None][seed]}) for seed in (0, 1)]
    table = {row[0]: row for row in table_of(results_page(results, tmp_path), "shuttle")}
    assert table["MAF"][1:3] == ["0.5833 (0.2500, 0.5000, 1.0000)", "0.8610"]
    assert table["MAF"][-3:] == ["0, 3, 7", "1 min 12 s", "`bayesnde reproduce shuttle --method maf`"]
    assert table["NSF"][1] == "–"
    assert table["NSF"][-1] == "`bayesnde reproduce shuttle --method nsf --seeds 3`"
    assert table["MADE"][3] == "0.5000 (0.5000, –)"


def test_of_ours_it_is_told_how_many_rows_can_be_relied_on(tmp_path: Path) -> None:
    results = [
        result_of("cardio", "outliers", seed, figures={"n": 1000, "n_reliable": n}) for seed, n in ((0, 1000), (3, 999))
    ]
    page = results_page(
        [*results, result_of("cardio", "distance"), result_of("bank", "default", figures={"n_reliable": 500})], tmp_path
    )
    column = table_of(page, "cardio")[0].index("test rows")
    assert [row[column] for row in table_of(page, "cardio")[1:3]] == ["1,000, 99 % reliable", "500"]
    column = table_of(page, "bank")[0].index("test rows")
    assert table_of(page, "bank")[1][column] == "500, 100 % reliable"


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
    results = [result_of("bank", "roundtrip", seed, chosen=found) for seed, found in enumerate(chosen)]
    header, line, *_ = table_of(results_page(results, tmp_path), "bank")
    assert line[header.index("test rows")] == shown


@pytest.mark.parametrize("n_reliable", [29, 57, 58])  # 100 times the quotient is a little less than they are
def test_a_percentage_is_counted_in_whole_rows(n_reliable: int, tmp_path: Path) -> None:
    page = results_page([result_of("bank", "default", figures={"n": 100, "n_reliable": n_reliable})], tmp_path)
    header, line, *_ = table_of(page, "bank")
    assert line[header.index("test rows")] == f"100, {n_reliable} % reliable"


def test_competitors_stand_below_ours_the_best_first(tmp_path: Path) -> None:
    means = {"maf": 3.0, "nsf": 7.0, "made": 5.0, "default": 1.0}
    results = [result_of("bank", name, figures={"mean_log_density": mean}) for name, mean in means.items()]
    names = [row[0] for row in table_of(results_page(results, tmp_path), "bank")]
    assert names[:5] == ["method", "**ours, default**", "NSF", "MADE", "MAF"]


def test_budgets_and_times_are_worked_out_from_all_that_was_run(tmp_path: Path) -> None:
    bridge, importance = (0.6, 0.7, 0.65), (0.5, 0.65, 0.5)
    results = [
        result_of(
            "budget-sweep", "budget-100", seed, figures={"spearman": a, "importance": {"spearman": b, "error": 0.2}}
        )
        for seed, (a, b) in enumerate(zip(bridge, importance, strict=True))
    ]
    results += [result_of("bank", "default"), result_of("bank", "maf", seconds_fit=30.0, seconds_score=6.0)]
    page = results_page(results, tmp_path)
    gains = np.subtract(bridge, importance)
    shown = [f"{np.mean(v):.4f} ± {np.std(v, ddof=1) / 3**0.5:.4f}" for v in (bridge, importance, gains)]
    assert table_of(page, "budget-sweep")[1] == [
        "100", *shown, "0.5804", "0.5270", "0.1000 ± 0.0000", "0.2000 ± 0.0000", "0.0200",
        "`bayesnde reproduce budget-sweep --recipe budget-100`",
    ]  # fmt: skip
    everything = table_of(results_page(_everything(), tmp_path), "budget-sweep")
    at = everything[0].index("importance sampling in the paper")
    assert [row[at - 1 : at + 1] for row in everything[1:]] == [
        ["0.5804", "0.5270"], ["0.6034", "0.5501"], ["0.6311", "0.5932"], ["0.6300", "0.6014"], ["0.6207", "0.6039"],
    ]  # fmt: skip
    times = {row[0]: row[1:7] for row in table_of(page, "timing")}
    assert times["method"][3:] == ["as a ratio to ours", "in the paper (GPU)", "as a ratio to the paper's own"]
    assert times["MAF"] == ["30 s", "6 s", "36 s", "0.50", "2 min 36 s", "0.04"]
    assert times["**ours, default**"][3:] == ["1.00", "", ""]


def test_only_the_paper_s_recipe_has_a_figure_of_the_paper_without_the_bridge(tmp_path: Path) -> None:
    table = {row[0]: row for row in table_of(results_page(_everything(), tmp_path), "ablation-15d")}
    without = "importance sampling instead of the bridge"
    assert [table[f"{name}, {without}"][2] for name in ("ours, paper", "**ours, default**")] == ["0.5932", ""]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0.00"), (0.00011, "0.000011"), (0.0567, "0.0057"), (0.0996, "0.010"), (0.14, "0.01"), (123.4, "12.34")],
)
def test_small_ratios_of_times_have_two_digits(seconds: float, shown: str, tmp_path: Path) -> None:
    ours, theirs = ({"seconds_fit": value, "seconds_score": 0.0} for value in (10.0, seconds))
    results = [
        result_of("bank", "default", **ours),
        result_of("bank", "maf", **theirs),
        result_of("bank", "paper", **ours),
    ]
    times = {row[0]: row[4:7] for row in table_of(results_page(results, tmp_path), "timing")}
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
    text = str(reproduce.Reproduced(EXPERIMENTS["timing"], [result_of("bank", "paper")]))
    header, line = text.splitlines()
    assert header.split()[:3] == ["timing", "seed", "seconds"]
    assert line.split()[:4] == ["paper", "0", "72.00", "3852.00"]
