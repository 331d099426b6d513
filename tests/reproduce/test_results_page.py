"""The page of all results: what each cell says, the command of each row, and what is kept, replaced and refused."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from bayesnde_cli.reproduce import arms
from bayesnde_cli.reproduce.experiments import (
    EXPERIMENTS,
    SCORES_SCHEMA,
    Experiment,
    Reproduced,
    Request,
    Result,
    list_arms,
)
from bayesnde_cli.reproduce.pictures import DensityMap, read_map, write_map
from bayesnde_cli.reproduce.results_page import merge, results_page
from bayesnde_cli.runs.files import write_json
from bayesnde_cli.runs.layout import TEST_SET, ExperimentsLayout
from bayesnde_cli.runs.parquet_files import Stamp, write_table
from bayesnde_cli.stages.score import DENSITY_SCHEMA
from made_results import ROWS, result_of, table_of

OTHER_ROWS = "b" * 64
LATER, LATEST = "2025-01-02T00:00:00+00:00", "2099-01-01T00:00:00+00:00"
SIDE = np.linspace(-3.0, 3.0, 50)


def _everything() -> list[Result]:
    """A result of every arm of every experiment; some were run otherwise."""
    results = {}
    for name, experiment in EXPERIMENTS.items():
        for method in experiment.all_methods:
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


# Cells


@pytest.mark.parametrize(
    ("gain", "se", "shown"),
    [
        (0.00031, 0.00018, "0.0003 ± 0.0002"),
        (-0.000002, 0.0007, "0.0000 ± 0.0007"),
        (-0.0038, 0.0048, "-0.0038 ± 0.0048"),
        (0.4563, 0.0346, "0.456 ± 0.035"),
        (2.366, 0.0996, "2.37 ± 0.10"),
        (5.5, 1.234, "5.50 ± 1.23"),
        (0.5, 0.0, "0.50 ± 0.00"),
        (-0.001, None, "0.00"),
    ],
)
def test_a_gain_has_as_many_digits_as_its_error(gain: float, se: float | None, shown: str, tmp_path: Path) -> None:
    results = [result_of("bank", "default"), result_of("bank", "maf", figures={"gain": gain, "gain_se": se})]
    header, _, line, *_ = table_of(results_page(results, tmp_path), "bank")
    assert line[header.index("ours above it by")] == shown


def test_every_row_has_the_command_that_runs_it_again(
    bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Experiment, Request]] = []

    def note(root: Path, experiment: Experiment, wanted: Request, report: object) -> Reproduced:
        asked.append((experiment, wanted))
        return Reproduced(experiment, [])

    monkeypatch.setattr(arms, "run_reproduce", note)
    results = _everything()
    page = results_page(results, tmp_path)
    again, names = set(), ("involute", "gmm-15", "shuttle", "ablation-2d", "budget-sweep", "timing")
    for name, experiment in ((name, EXPERIMENTS[name]) for name in names):
        header, *lines = table_of(page, name)
        assert all(len(line) == len(header) for line in lines), name
        own = [r for r in results if r.experiment == experiment.folder_name]
        for line in lines:
            for command in re.findall("`([^`]+)`", line[-1].replace("\\|", "|")):
                asked.clear()
                assert bayesnde(*shlex.split(command)[1:], "-q").code == 0, command
                ((named, wanted),) = asked
                assert named == experiment
                listed = list_arms(named, wanted)
                assert len({method for method, _ in listed}) == 1
                for method, seed in listed:
                    (result,) = [r for r in own if (r.method, r.seed) == (method, seed)]
                    assert list(wanted.settings) == result.settings
                    assert (wanted.test_rows or named.test_rows) == result.test_rows
                    again.add(result.key)
    methods = {(EXPERIMENTS[name].folder_name, method) for name in names for method in EXPERIMENTS[name].all_methods}
    assert again == {r.key for r in results if r.key[:2] in methods}


def test_methods_that_were_not_run_are_named_with_their_commands(tmp_path: Path) -> None:
    (tmp_path / "results-involute.svg").write_text("<svg/>")
    page = results_page([result_of("involute", "default"), result_of("involute", "maf")], tmp_path)
    table = {row[0]: row for row in table_of(page, "involute")}
    assert table["ours, paper"][1:3] == ["not run", "0.9590"]
    assert table["ours, paper"][-1] == "`bayesnde reproduce involute --recipe paper`"
    assert table["Roundtrip"][-1] == "`bayesnde reproduce involute --method roundtrip`"
    assert "\n## gmm-15\n" in page
    assert "Not run yet: `bayesnde reproduce gmm --dim 15`." in page
    below = page.partition("\n## involute\n")[2].partition("\n## ")[0].rpartition(" |\n\n")[2]
    # The paper has a figure of its own recipe and of Roundtrip: these have their lines.
    assert below == (
        "Not run: Gaussian, Gaussian mixture, kernel density, MADE, Real NVP, NSF, flow matching (CFM), Residual Flow."
        "\n\n![a spiral in two columns](results-involute.svg)\n"
    )
    page = results_page([result_of("bank", "default"), result_of("budget-sweep", "budget-100")], tmp_path)
    assert "\n\nNot run: ours, paper; Gaussian; Gaussian mixture; kernel density; MADE; MAF;" in page
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


@pytest.mark.parametrize(
    ("method", "known", "shown"),
    [
        ("default", [500], "500, 100 % reliable"),
        ("default", [500, 499], "500, 99 % reliable"),
        ("made", [None], "500"),
        ("roundtrip", [0.612], "500, 38 % with an error below 0.3"),
        ("roundtrip", [0.002], "500, 99 % with an error below 0.3"),
        ("roundtrip", [0.2, 0.4], "500, 70 % with an error below 0.3"),
        ("roundtrip", [0.2, None], "500"),
    ],
)
def test_the_number_of_rows_comes_with_the_share_that_is_known_well(
    method: str, known: list[Any], shown: str, tmp_path: Path
) -> None:
    results = []
    for seed, value in enumerate(known):
        figures = {"n_reliable": value} if method == "default" else {}
        chosen = {"share_above_0.3": value} if method == "roundtrip" and value is not None else {}
        results.append(result_of("bank", method, seed, figures=figures, chosen=chosen))
    header, line, *_ = table_of(results_page(results, tmp_path), "bank")
    assert line[header.index("test rows")] == shown


def test_budgets_and_times_are_computed_from_all_results(tmp_path: Path) -> None:
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
    errors = ["0.1000 ± 0.0000", "0.2000 ± 0.0000", "0.0200"]
    command = "`bayesnde reproduce budget-sweep --recipe budget-100`"
    assert table_of(page, "budget-sweep")[1] == ["100", *shown, "0.5804", "0.5270", *errors, command]
    times = {row[0]: row[1:7] for row in table_of(page, "timing")}
    assert times["method"][3:] == ["as a ratio to ours", "in the paper (GPU)", "as a ratio to the paper's own"]
    assert times["MAF"] == ["30 s", "6 s", "36 s", "0.50", "2 min 36 s", "0.04"]
    assert times["**ours, default**"][3:] == ["1.00", "", ""]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0.00"), (0.00011, "0.000011"), (0.0567, "0.0057"), (0.0996, "0.010"), (123.4, "12.34")],
)
def test_small_ratios_of_times_have_two_digits(seconds: float, shown: str, tmp_path: Path) -> None:
    spans = {"default": 10.0, "maf": seconds}
    results = [result_of("bank", name, seconds_fit=value, seconds_score=0.0) for name, value in spans.items()]
    times = {row[0]: row[4:7] for row in table_of(results_page(results, tmp_path), "timing")}
    assert times["MAF"] == [shown, "2 min 36 s", "0.04"]


def test_texts_and_pictures_of_the_folder_are_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results/introduction.md").write_text("# All of it\n")
    (tmp_path / "results/involute.md").write_text("A spiral is hard.\n")
    (tmp_path / "results-budget.svg").write_text("<svg/>")
    page = results_page([], tmp_path)
    start = "# All of it\n\n## involute\n\nA spiral in two columns.\n\nA spiral is hard.\n\nNot run yet: "
    assert page.startswith(start)
    assert page.count("![") == 1
    assert "draws, 15 columns](results-budget.svg)" in page
    table = {row[0]: row for row in table_of(results_page(_everything(), tmp_path), "ablation-15d")}
    without = "importance sampling instead of the bridge"
    assert [table[f"{name}, {without}"][2] for name in ("ours, paper", "**ours, default**")] == ["0.5932", ""]


# Collecting


def _put(
    root: Path, result: Result, log_density: np.ndarray | None = None, density_map: DensityMap | None = None
) -> None:
    """A result in its folder, with the log-densities that it comes from and the map of its fit."""
    arm = ExperimentsLayout(root).arm(*result.key)
    path, name = arm.scores_file, SCORES_SCHEMA
    if result.is_own:
        path, name = arm.run.density_file(TEST_SET), DENSITY_SCHEMA
    values = np.zeros(3) if log_density is None else log_density
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, pa.table({"row_id": np.arange(len(values)), "log_density": values}), Stamp(name, "0" * 16))
    write_json(arm.result_file, result.as_dict())
    if density_map is not None:
        write_map(arm.map_file, density_map)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def collect(bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict]]:
    """Collects a run directory; the stored results."""
    monkeypatch.chdir(tmp_path)

    def call(run: str) -> list[dict]:
        outcome = bayesnde("reproduce", "--collect", "--run", run, "--out", "docs/page.md", "-q")
        assert outcome.code == 0, outcome.err
        return json.loads(Path("docs/page.json").read_text())["results"]

    return call


def test_older_results_are_kept_and_newer_ones_replace_them(collect: Callable, bayesnde: Callable) -> None:
    old = result_of("involute", "made", figures={"spearman": 0.1})
    _put(Path("one"), old)
    _put(Path("one"), result_of("bank", "nsf"))
    _put(Path("two"), replace(old, figures=old.figures | {"spearman": 0.2}, ended=LATER))
    assert len(collect("one")) == 2
    outcome = bayesnde("reproduce", "--collect", "--run", "two", "--out", "docs/page.md", "--json")
    assert json.loads(outcome.out) == {"page": "docs/page.md", "n_results": 2, "n_new": 1}
    stored = json.loads(Path("docs/page.json").read_text())
    assert (stored["schema"], stored["schema_version"]) == ("experiment_results", 1)
    found = [(r["experiment"], r["figures"]["spearman"]) for r in stored["results"]]
    assert found == [("involute", 0.2), ("bank", 0.9)]
    assert "0.2000" in Path("docs/page.md").read_text()
    # The older one, collected once more, does not come back.
    assert collect("one") == stored["results"]


def test_results_are_in_the_order_of_experiments_then_ours_methods_and_seeds() -> None:
    names = "involute default 0, involute paper 0, involute maf 1, involute maf 2, involute nsf 0, "
    names += "gmm-15 budget-100 0, gmm-15 default 0, bank maf 0"
    keys = [(name, method, int(seed)) for name, method, seed in map(str.split, names.split(", "))]
    results = [result_of("budget-sweep" if "budget" in method else name, method, seed) for name, method, seed in keys]
    unknown = replace(results[0], experiment="of-another-version")
    assert [result.key for result in merge(reversed(results), [unknown])] == [*keys, unknown.key]


def test_results_on_other_rows_and_other_documents_are_refused(bayesnde: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "r", result_of("involute", "default"))
    _put(tmp_path / "r", result_of("involute", "maf", 3, rows_sha256=OTHER_ROWS))
    arguments = ["reproduce", "--collect", "--run", tmp_path / "r", "--out", tmp_path / "docs/page.md"]
    assert bayesnde(*arguments) == (
        3,
        "",
        "error: involute: maf and default were not evaluated on the same rows\n"
        f"  maf, seed 3: 500 rows, {OTHER_ROWS}\n  default, seed 0: 500 rows, {ROWS}\n"
        "hint: run one of them again as the other was run (--test-rows, version), with --restart\n",
    )
    assert not (tmp_path / "docs").exists()
    store = tmp_path / "docs/page.json"
    store.parent.mkdir()
    store.write_text('{"schema":"mine","schema_version":1}')
    assert bayesnde(*arguments) == (
        3,
        "",
        f"error: {store} does not hold results of experiments\n  another document\n"
        "hint: name another page with --out\n",
    )
    store.write_text('{"schema":"experiment_results","schema_version":1,"results":[{"seed":1}]}')
    outcome = bayesnde(*arguments)
    assert (outcome.code, outcome.err.partition("\n")[0]) == (3, f"error: {store} is not a result of an experiment")
    assert list(store.parent.iterdir()) == [store]
    (tmp_path / "afile").touch()
    outcome = bayesnde(*arguments[:-1], tmp_path / "afile/page.md")
    assert (outcome.code, outcome.err.count("hint: ")) in [(2, 1), (3, 1)]


def test_the_gain_is_the_mean_difference_of_the_same_rows(collect: Callable) -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=20), rng.normal(size=20)
    theirs[[3, 7]] = -np.inf
    _put(Path("r"), result_of("involute", "default"), ours)
    _put(Path("r"), result_of("involute", "default", 1), ours + 5)  # not the first seed
    _put(Path("r"), result_of("involute", "maf", figures={"n_not_finite": 2}), theirs)
    _put(Path("r"), result_of("involute", "made", figures={"mean_log_density": None}), theirs)
    found = {(r["method"], r["seed"]): r["figures"] for r in collect("r")}
    differences = (ours - theirs)[np.isfinite(theirs)]
    gain, se = differences.mean(), differences.std(ddof=1) / 18**0.5
    assert found["maf", 0]["gain"] == pytest.approx(gain)
    assert found["maf", 0]["gain_se"] == pytest.approx(se)
    assert found["default", 1]["gain"] == pytest.approx(-5.0)
    assert all("gain" not in found[arm] for arm in (("default", 0), ("made", 0)))
    table = {row[0]: row for row in table_of(Path("docs/page.md").read_text(), "involute")}
    column = table["method"].index("ours above it by")
    assert table["MAF"][column] == f"{gain:.2f} ± {se:.2f}"  # an error of 0.3: two digits
    assert table["MAF"][column - 1] == "-2.00 ± 0.10, without 2 rows at -∞"
    assert table["MADE"][column] == ""


def test_a_gain_is_kept_while_both_fits_are_the_same(collect: Callable) -> None:
    def gains(run: str) -> dict[str, float]:
        return {r["method"]: r["figures"]["gain"] for r in collect(run) if "gain" in r["figures"]}

    rows = np.arange(20.0)
    for run in ("both", "ours"):
        _put(Path(run), result_of("involute", "default"), rows + 1)
    for run in ("both", "theirs"):
        _put(Path(run), result_of("involute", "maf"), rows)
    # The same fits once more, without the other one; and another seed of ours.
    _put(Path("seed"), result_of("involute", "default", 1, ended=LATEST), rows)
    assert [gains(run) for run in ("both", "ours", "theirs", "seed")] == [{"maf": 1.0}] * 4
    # A newer fit of theirs has no gain until it is collected together with ours; nor has one over an older fit of ours.
    _put(Path("theirs"), result_of("involute", "maf", ended=LATEST), rows)
    assert gains("theirs") == {}
    _put(Path("newer"), result_of("involute", "default", ended=LATEST), rows + 2)
    assert gains("newer") == gains("both") == {}
    _put(Path("newer"), result_of("involute", "maf", ended=LATEST), rows)
    assert gains("newer") == {"maf": 2.0}


def test_the_page_of_the_docs_is_what_its_results_and_texts_give(bayesnde: Callable, tmp_path: Path) -> None:
    docs, copied = Path(__file__).parents[2] / "docs", tmp_path / "docs"
    copied.mkdir()
    for path in docs.glob("results*"):
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, copied / path.name)
    before = _files(copied)
    arguments = ["reproduce", "--collect", "--run", tmp_path / "none", "--out", copied / "results.md", "-q"]
    assert bayesnde(*arguments).code == 0
    after = _files(copied)
    assert before.keys() == after.keys()
    # The bytes of a picture depend on the version of matplotlib.
    changed = sorted(name for name in before if before[name] != after[name] and not name.endswith(".svg"))
    assert not changed, f"{', '.join(changed)}: run `bayesnde reproduce --collect` and commit what it writes"


# Maps next to the page


def _map(spread: float) -> DensityMap:
    return DensityMap(SIDE, SIDE, -np.add.outer(SIDE**2, SIDE**2) / spread)


def _put_map(run: str, method: str, found: DensityMap | None, ended: str = "2025-01-01") -> None:
    _put(Path(run), result_of("involute", method, figures={"mean_log_density": None}, ended=ended), density_map=found)


def _drawn() -> list[str]:
    """The names above the maps of the picture."""
    texts = ElementTree.parse("docs/results-involute.svg").iter("{http://www.w3.org/2000/svg}text")
    return [text.text or "" for text in texts if "13px" in text.attrib["style"]]


def test_maps_of_earlier_run_directories_stay_in_the_picture(collect: Callable) -> None:
    deep = _map(2.0)
    deep.log_density[0, 0] = -1e300  # below all float32: a density of 0
    _put_map("one", "maf", deep)
    _put_map("two", "nsf", _map(3.0))
    _put(Path("two"), result_of("ablation-2d", "paper-no-warm-start"), density_map=_map(2.0))  # in no picture
    collect("one")
    collect("two")
    assert _drawn() == ["true density", "MAF", "NSF"]
    files = _files(Path("docs"))
    kept = ["results-maps/involute-maf-seed0.parquet", "results-maps/involute-nsf-seed0.parquet"]
    assert [name for name in files if "maps" in name] == kept
    assert max(len(files[name]) for name in kept) < 15_000
    assert read_map(Path("docs") / kept[0]).log_density[0, 0] == -np.inf
    for run in ("none", "one"):  # the same to the byte
        collect(run)
        assert _files(Path("docs")) == files


def test_a_map_is_that_of_the_newest_result(collect: Callable) -> None:
    stored = Path("docs/results-maps/involute-maf-seed0.parquet")
    for method in ("maf", "nsf"):
        _put_map("old", method, _map(2.0))
    _put_map("new", "maf", _map(3.0), LATER)
    for run in ("old", "new", "old"):
        collect(run)
    np.testing.assert_allclose(read_map(stored).log_density, _map(3.0).log_density, rtol=1e-6)
    _put_map("same", "maf", None, LATER)
    collect("same")
    assert stored.exists()  # the same fit: its map is there already
    _put_map("newest", "maf", None, LATEST)
    collect("newest")
    assert _drawn() == ["true density", "NSF"]
    assert not stored.exists()
