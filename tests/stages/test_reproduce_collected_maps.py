"""The maps beside the results page: each run directory adds to them, and the picture shows all of them."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bayesnde_cli.artifacts.experiments_layout import ExperimentsLayout
from bayesnde_cli.stages.reproduce.density_map import DensityMap
from bayesnde_cli.stages.reproduce.maps import read_map, write_map
from bayesnde_cli.stages.reproduce.result import Result, write_result

LATER = "2025-01-02T00:00:00+00:00"
SIDE = np.linspace(-3.0, 3.0, 50)


def _map(spread: float, x1: np.ndarray = SIDE) -> DensityMap:
    return DensityMap(x1, SIDE, -np.add.outer(x1**2, SIDE**2) / spread)


def _put(root: Path, method: str, found: DensityMap | None, *, seed: int = 0, ended: str = "2025-01-01") -> None:
    """A result without a log-density, and the map of its fit."""
    figures = {"n": 500, "spearman": 0.9, "mean_log_density": None}
    result = Result("involute", method, False, seed, [], 500, figures, {}, "0" * 64, 1.0, 1.0, "cpu", ended, "0")
    arm = ExperimentsLayout(root).arm(*result.key)
    write_result(arm.result_file, result)
    if found is not None:
        write_map(arm.map_file, found)


@pytest.fixture
def collect(bayesnde: Callable, tmp_path: Path) -> Callable[[str], dict[str, bytes]]:
    """Collects a run directory; what lies beside the page then, by name."""

    def call(run: str) -> dict[str, bytes]:
        docs = tmp_path / "docs"
        outcome = bayesnde("reproduce", "--collect", "--run", tmp_path / run, "--out", docs / "page.md", "-q")
        assert outcome.code == 0, outcome.err
        return {str(path.relative_to(docs)): path.read_bytes() for path in sorted(docs.rglob("*")) if path.is_file()}

    return call


def _drawn(files: dict[str, bytes]) -> list[str]:
    """The names under the maps of the picture."""
    return re.findall(r'class="name">([^<]*)<', files["results-involute.svg"].decode())


def test_maps_of_an_earlier_run_directory_stay_in_the_picture(collect: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "one", "maf", _map(2.0))
    _put(tmp_path / "two", "nsf", _map(3.0))
    collect("one")
    files = collect("two")
    assert _drawn(files) == ["true density", "MAF", "NSF"]
    kept = ["results-maps/involute-maf-seed0.parquet", "results-maps/involute-nsf-seed0.parquet"]
    assert [name for name in files if "maps" in name] == kept
    assert max(len(files[name]) for name in kept) < 15_000
    # Once more, and from a run directory with nothing in it: the same to the byte.
    assert collect("two") == collect("none") == collect("one") == files


def test_a_map_is_that_of_the_newest_result(collect: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "old", "maf", _map(2.0))
    _put(tmp_path / "new", "maf", _map(3.0), ended=LATER)
    collect("old")
    files = collect("new")
    np.testing.assert_allclose(_stored(tmp_path).log_density, _map(3.0).log_density, rtol=1e-6)
    assert collect("old") == files


def test_a_newer_result_without_a_map_does_not_keep_that_of_another_fit(collect: Callable, tmp_path: Path) -> None:
    for method in ("maf", "nsf"):
        _put(tmp_path / "old", method, _map(2.0))
    collect("old")
    _put(tmp_path / "same", "maf", None)
    assert _drawn(collect("same")) == ["true density", "MAF", "NSF"]  # the same fit: its map is there already
    _put(tmp_path / "new", "maf", None, ended=LATER)
    files = collect("new")
    assert _drawn(files) == ["true density", "NSF"]
    assert "results-maps/involute-maf-seed0.parquet" not in files


def test_of_several_seeds_the_first_one_is_shown_and_each_is_kept(collect: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "one", "maf", _map(2.0), seed=10)
    _put(tmp_path / "two", "maf", _map(3.0), seed=9)
    first = collect("one")["results-involute.svg"]
    files = collect("two")
    assert _drawn(files) == ["true density", "MAF"]
    assert files["results-involute.svg"] != first
    assert sum("maps" in name for name in files) == 2


def test_a_stored_map_of_other_rows_is_left_out(collect: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "one", "maf", _map(2.0))
    _put(tmp_path / "two", "nsf", _map(2.0, x1=SIDE + 1.0))
    collect("one")
    assert _drawn(collect("two")) == ["true density", "MAF"]


def test_what_is_below_all_float32_is_a_density_of_zero(collect: Callable, tmp_path: Path) -> None:
    deep = _map(2.0)
    deep.log_density[0, 0] = -1e300
    _put(tmp_path / "one", "maf", deep)
    files = collect("one")
    assert _stored(tmp_path).log_density[0, 0] == -np.inf
    assert collect("none") == files


def test_a_map_that_is_not_shown_is_not_kept(collect: Callable, tmp_path: Path) -> None:
    _put(tmp_path / "one", "maf", _map(2.0))
    arms = ExperimentsLayout(tmp_path / "one")
    arm, other = arms.arm("involute", "maf", 0), arms.arm("gmm-2", "paper-no-warm-start", 0)
    write_map(other.map_file, _map(2.0))
    figures = {"n": 500, "spearman": 0.9, "importance": {"spearman": 0.9, "mean_log_density": -1.0}}
    result = Result("gmm-2", "paper-no-warm-start", True, 0, [], 500, figures, {}, "0" * 64, 1.0, 1.0, "cpu", "", "0")
    write_result(other.result_file, result)
    assert arm.map_file.exists()
    assert [name for name in collect("one") if "maps" in name] == ["results-maps/involute-maf-seed0.parquet"]


def _stored(tmp_path: Path) -> DensityMap:
    return read_map(tmp_path / "docs/results-maps/involute-maf-seed0.parquet")
