"""All results on one page: what is kept, what is replaced, what is refused, and commands that make each row again."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bayesnde_cli.artifacts.experiments_layout import ExperimentsLayout
from bayesnde_cli.artifacts.layout import TEST_SET
from bayesnde_cli.artifacts.tables import write_table
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.stages.reproduce.collecting import merge
from bayesnde_cli.stages.reproduce.result import Result, result_from, write_result
from bayesnde_cli.stages.reproduce.scores import SCORES_SCHEMA, SCORES_VERSION
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION
from made_results import ROWS, result_of, table_of

OTHER_ROWS = "b" * 64


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


@pytest.fixture
def collect(bayesnde: Callable, tmp_path: Path) -> Callable[..., dict]:
    def call(run: str) -> dict:
        arguments = ["reproduce", "--collect", "--run", tmp_path / run, "--out", tmp_path / "docs/page.md", "--json"]
        outcome = bayesnde(*arguments)
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)

    return call


def test_older_results_are_kept_and_newer_ones_replace_them(collect: Callable, tmp_path: Path) -> None:
    old, later = result_of("involute", "maf", figures={"spearman": 0.1}), "2025-01-02T00:00:00+00:00"
    _put(tmp_path / "one", old)
    _put(tmp_path / "one", result_of("bank", "nsf"))
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
    results = [result_of("budget-sweep" if "budget" in method else name, method, seed) for name, method, seed in arms]
    unknown = replace(results[0], experiment="of-another-version")
    found = [result.key for result in merge(reversed(results), [unknown])]
    assert found == [*arms[:5], arms[6], arms[5], arms[7], unknown.key]


def test_rows_that_are_not_the_same_are_refused(bayesnde: Callable, tmp_path: Path) -> None:
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
    # Control: the same rows are no reason.
    _put(tmp_path / "r", result_of("involute", "maf", 3))
    assert bayesnde(*arguments).code == 0


def test_a_result_of_an_experiment_that_is_not_known_is_kept(collect: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "r", replace(result_of("involute", "maf"), experiment="of-another-version"))
    assert collect("r")["n_results"] == 1


def test_what_is_no_collection_is_not_written_over(bayesnde: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "r", result_of("involute", "maf"))
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
    _put(tmp_path / "r", result_of("involute", "default"), ours)
    _put(
        tmp_path / "r", result_of("involute", "default", 1), ours + 5
    )  # not the first seed: nothing is held against it
    _put(tmp_path / "r", result_of("involute", "maf", figures={"n_not_finite": 2}), theirs)
    _put(tmp_path / "r", result_of("involute", "made", figures={"mean_log_density": None}), theirs)
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
    table = {row[0]: row for row in table_of((tmp_path / "docs/page.md").read_text(), "involute")}
    place = table["method"].index("ours above it by")
    assert table["MAF"][place] == f"{gain:.2f} ± {(variance / 18) ** 0.5:.2f}"  # an error of 0.3: two digits
    assert table["MAF"][place - 1] == "-2.00 ± 0.10, without 2 rows at -∞"
    assert table["MADE"][place] == ""


def test_a_gain_over_another_fit_of_ours_is_forgotten(collect: Callable, tmp_path: Path) -> None:
    rows = np.arange(20.0)
    _put(tmp_path / "first", result_of("involute", "default"), rows + 1)
    _put(tmp_path / "first", result_of("involute", "maf"), rows)
    collect("first")
    _put(tmp_path / "second", result_of("involute", "default", ended="2099-01-01T00:00:00+00:00"), rows + 2)
    collect("second")
    results = json.loads((tmp_path / "docs/page.json").read_text())["results"]
    assert [(r["method"], "gain" in r["figures"]) for r in results] == [("default", False), ("maf", False)]


def _gains(tmp_path: Path) -> dict[str, float]:
    """The gains that are stored, by method."""
    results = json.loads((tmp_path / "docs/page.json").read_text())["results"]
    return {r["method"]: r["figures"]["gain"] for r in results if "gain" in r["figures"]}


def test_no_gain_is_over_a_fit_of_ours_that_is_not_kept(collect: Callable, tmp_path: Path) -> None:
    rows = np.arange(20.0)
    _put(tmp_path / "newer", result_of("involute", "default", ended="2099-01-01T00:00:00+00:00"), rows + 2)
    collect("newer")
    _put(tmp_path / "older", result_of("involute", "default"), rows + 1)
    _put(tmp_path / "older", result_of("involute", "maf"), rows)
    collect("older")
    assert _gains(tmp_path) == {}
    # Control: beside the fit that is kept there is one.
    _put(tmp_path / "newer", result_of("involute", "maf"), rows)
    collect("newer")
    assert _gains(tmp_path) == {"maf": 2.0}


def test_a_gain_over_the_same_fit_of_ours_is_kept(collect: Callable, tmp_path: Path) -> None:
    rows = np.arange(20.0)
    _put(tmp_path / "both", result_of("involute", "default"), rows + 1)
    _put(tmp_path / "both", result_of("involute", "maf"), rows)
    collect("both")
    _put(tmp_path / "ours", result_of("involute", "default"), rows + 1)
    _put(tmp_path / "theirs", result_of("involute", "maf"), rows)
    for run in ("ours", "theirs"):  # the same fits once more, without the other one
        collect(run)
        assert _gains(tmp_path) == {"maf": 1.0}
    # Another seed of ours is nothing that a gain is over.
    _put(tmp_path / "seed", result_of("involute", "default", 1, ended="2099-01-01T00:00:00+00:00"), rows)
    collect("seed")
    assert _gains(tmp_path) == {"maf": 1.0}
    # A newer fit of theirs has no gain until it lies beside ours.
    _put(tmp_path / "theirs", result_of("involute", "maf", ended="2099-01-01T00:00:00+00:00"), rows)
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
    found = result_of("involute", "maf").as_dict()
    assert result_from(found, tmp_path).key == ("involute", "maf", 0)
    with pytest.raises(BadArtifact, match="is no result of an experiment"):
        result_from(found | {name: value}, tmp_path)


@pytest.mark.parametrize("results", ["[1]", "{}", "null"])
def test_a_store_that_is_damaged_is_refused_and_left_as_it_is(results: str, bayesnde: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "r", result_of("involute", "maf"))
    text = f'{{"schema":"experiment_results","schema_version":1,"results":{results}}}'
    (tmp_path / "page.json").write_text(text)
    outcome = bayesnde("reproduce", "--collect", "--run", tmp_path / "r", "--out", tmp_path / "page.md")
    assert (outcome.code, outcome.out) == (3, "")
    assert (tmp_path / "page.json").read_text() == text


def test_a_page_below_a_file_cannot_be_written(bayesnde: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "r", result_of("involute", "maf"))
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
