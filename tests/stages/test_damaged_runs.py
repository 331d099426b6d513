"""Every file of a run, damaged in every way: named and refused with the command that repairs it, or made again.

The commands that read a file run on a copy of a complete run in which that one file is damaged.
"""

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from typing import Any as Outcome

import pytest

import whole_runs
from bayesnde_cli.runs.files import HOST
from damages import emptied, flipped, newer, truncated
from whole_runs import DRAWS, FEW, SMALL

DAMAGES = {"truncated": truncated, "empty": emptied, "one bit": flipped, "newer": newer}
SWAPPED = "of another run"
NEW = "density/new"  # the folder of the file new.csv, whose name ends with a hash

STATUS = ["status", "--verify"]
WARMSTART, REFINE, POSTERIOR, DENSITY = ["warmstart"], ["refine"], ["posterior", *DRAWS], ["density", *SMALL]
NEW_DENSITY, EVALUATE = ["density", "new.csv", *SMALL], ["evaluate", *FEW]
SAMPLE, OUTLIERS, CLASSIFY = ["sample", "3"], ["outliers"], ["classify"]
GRID = ["grid", "a", "b", "--points", "3", "--draws", "100"]
APPLYING = [SAMPLE, OUTLIERS, CLASSIFY, GRID]
# Files whose SHA-256 is in no manifest: a flipped bit is not always detected.
_UNHASHED = re.compile(r"manifest\.json|plan\.json|(block|diagnostics)-\d+\.parquet|rows\.parquet")
_BEGUN = ("manifest.json", "density.parquet", "diagnostics.parquet")


class Reading(NamedTuple):
    """The commands that read a file, and what they then do."""

    commands: list[list[str]]
    is_refused: bool = True  # else it is named in a warning, and made again
    is_begun: bool = False  # it is read while its stage is not complete


READ_BY = {
    "prepare/manifest.json": Reading([STATUS, WARMSTART, REFINE, DENSITY, EVALUATE, *APPLYING]),
    "prepare/schema.json": Reading([STATUS, WARMSTART, REFINE, DENSITY, NEW_DENSITY, EVALUATE, *APPLYING]),
    "prepare/train.parquet": Reading([STATUS, WARMSTART, REFINE, EVALUATE, SAMPLE, GRID]),
    "prepare/validation.parquet": Reading([STATUS, WARMSTART, REFINE, EVALUATE]),
    "prepare/test.parquet": Reading([STATUS, DENSITY, EVALUATE, OUTLIERS, CLASSIFY]),
    "warmstart/manifest.json": Reading([STATUS, REFINE]),
    "warmstart/weights/model.npz": Reading([STATUS, REFINE]),
    "warmstart/history.parquet": Reading([STATUS, [*EVALUATE, "--restart"]]),
    "warmstart/selection.parquet": Reading([STATUS]),
    "refine/manifest.json": Reading([STATUS, DENSITY, EVALUATE, *APPLYING]),
    "refine/weights/model.npz": Reading([STATUS, DENSITY, EVALUATE, *APPLYING]),
    "refine/latents.parquet": Reading([STATUS, DENSITY, EVALUATE, *APPLYING]),
    "refine/history.parquet": Reading([STATUS]),
    "refine/selection.parquet": Reading([STATUS, [*EVALUATE, "--restart"]]),
    "posterior/test/manifest.json": Reading([STATUS, POSTERIOR]),
    "posterior/test/diagnostics.parquet": Reading([STATUS, POSTERIOR]),
    "posterior/test/plan.json": Reading([STATUS, POSTERIOR], is_begun=True),
    "posterior/test/block-00000.parquet": Reading([[*DENSITY, "--restart"]], is_refused=False),
    "posterior/test/block-00001.parquet": Reading([STATUS]),
    "posterior/test/diagnostics-00000.parquet": Reading([[*DENSITY, "--restart"]], is_refused=False),
    "posterior/test/diagnostics-00001.parquet": Reading([STATUS, POSTERIOR], is_begun=True),
    "density/test/manifest.json": Reading([STATUS, DENSITY, EVALUATE, OUTLIERS]),
    "density/test/density.parquet": Reading([STATUS, DENSITY, EVALUATE, OUTLIERS]),
    "density/test/plan.json": Reading([STATUS, DENSITY], is_begun=True),
    "density/test/block-00000.parquet": Reading([STATUS, DENSITY], is_begun=True),
    "density/test/block-00001.parquet": Reading([STATUS, DENSITY], is_begun=True),
    f"{NEW}/manifest.json": Reading([STATUS, NEW_DENSITY]),
    f"{NEW}/density.parquet": Reading([STATUS, NEW_DENSITY]),
    f"{NEW}/plan.json": Reading([STATUS, NEW_DENSITY], is_begun=True),
    f"{NEW}/block-00000.parquet": Reading([STATUS, NEW_DENSITY], is_begun=True),
    f"{NEW}/rows.parquet": Reading([NEW_DENSITY], is_refused=False, is_begun=True),
    "evaluate/test/manifest.json": Reading([STATUS, EVALUATE]),
    "evaluate/test/metrics.json": Reading([STATUS, EVALUATE]),
    "evaluate/test/report.html": Reading([STATUS, EVALUATE]),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run. Not to be written to."""
    return _make_run(tmp_path_factory.mktemp("whole"), seed=0)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with other data, without `evaluate`, which takes longest."""
    return _make_run(tmp_path_factory.mktemp("other"), seed=1, is_evaluated=False)


def _make_run(folder: Path, **options: Any) -> Path:
    with pytest.MonkeyPatch.context() as monkeypatch:
        whole_runs.install(monkeypatch)
        whole_runs.whole_run(folder, **options)
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A fresh copy of the run, in which the commands run, and the path of a file in it."""
    whole_runs.install(monkeypatch)

    def copy(name: str) -> Path:
        folder = tmp_path / f"copy-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(whole, folder)
        monkeypatch.chdir(folder)
        return _place(folder, name)

    return copy


def _place(folder: Path, name: str) -> Path:
    if not name.startswith(NEW):
        return folder / "run" / name
    (new,) = (folder / "run/density").glob("new-*")
    return new / Path(name).name


def test_every_file_of_the_run_is_in_the_table(whole: Path) -> None:
    files = {str(path.relative_to(whole / "run")) for path in (whole / "run").rglob("*") if path.is_file()}
    assert {re.sub(r"density/new-[0-9a-f]{8}/", f"{NEW}/", name) for name in files} == set(READ_BY)


@pytest.mark.parametrize("name", [*READ_BY])
def test_a_damaged_file_is_refused_or_made_again(
    name: str, copied: Callable[[str], Path], whole: Path, other: Path, bayesnde: Callable
) -> None:
    """Each command meets another kind of damage; over all files every kind meets every command."""
    reading, chance = READ_BY[name], random.Random(name)
    impossible = {
        "newer": name.endswith(".html"),
        "one bit": _UNHASHED.fullmatch(Path(name).name),
        SWAPPED: name.startswith("evaluate"),
    }
    kinds = [kind for kind in (*DAMAGES, SWAPPED) if not impossible.get(kind)]
    first = [*READ_BY].index(name)
    for turn, command in enumerate(reading.commands):
        damage = kinds[(first + turn) % len(kinds)]
        path = copied(name)
        if damage == SWAPPED:
            path.write_bytes(_place(other, name).read_bytes())
        else:
            DAMAGES[damage](path, chance)
        if reading.is_begun:
            for finished in _BEGUN:
                (path.parent / finished).unlink(missing_ok=True)
        outcome = bayesnde(*command)
        case = f"{name}, {damage}, {' '.join(command)}:\n{outcome.out}{outcome.err}"
        assert "Traceback" not in outcome.err, case
        if command == STATUS:
            _assert_named(outcome, case)
        elif reading.is_refused:
            _assert_refused(path, outcome, case)
        else:
            _assert_made_again(path, whole, outcome, case)
        shutil.rmtree(Path.cwd())


def _assert_named(outcome: Outcome, case: str) -> None:
    """`status` says that the stage, or a stage made from it, is not sound, and what to type."""
    code, out, _ = outcome
    assert code == 3, case
    assert re.search(r" (damaged|stale) ", out), case
    assert "\nnext: bayesnde " in out, case
    assert "--restart" in out, case


def _assert_refused(path: Path, outcome: Outcome, case: str) -> None:
    code, out, err = outcome
    # Another run's manifest or plan is whole: it says that it was made with other settings or data.
    is_other = "was made with other settings or data" in err
    assert code == (2 if is_other else 3), case
    assert err.startswith("error: "), case
    assert err.count("error: ") == 1, case
    assert "\nhint: " in err, case
    assert re.search(r"`bayesnde \w+|delete that file", err), case
    stage = path.relative_to(Path.cwd() / "run").parts[0]
    assert str(path.relative_to(Path.cwd())) in err or f"{stage}/" in err or f"error: {stage} " in err, case
    assert out == "", case


def _assert_made_again(path: Path, whole: Path, outcome: Outcome, case: str) -> None:
    code, _, err = outcome
    assert code == 0, case
    assert f"warning: {path.relative_to(Path.cwd())} " in err, case
    made = "density/test/density.parquet" if "new.csv" not in case else f"{NEW}/density.parquet"
    assert _place(Path.cwd(), made).read_bytes() == _place(whole, made).read_bytes(), case


@pytest.mark.parametrize(("name", "is_removed"), [("plan.json", False), ("diagnostics-00000.parquet", True)])
def test_draws_that_are_damaged_or_removed_do_not_stop_density(
    name: str, is_removed: bool, copied: Callable[[str], Path], whole: Path, bayesnde: Callable
) -> None:
    path = copied(f"posterior/test/{name}")
    if is_removed:
        path.unlink()
    else:
        path.write_bytes(b"PAR1")
    outcome = bayesnde(*DENSITY, "--restart")
    _assert_made_again(path, whole, outcome, f"{name}:\n{outcome.err}")
    assert "to repair" in outcome.err


def test_undamaged_all_commands_end_well(copied: Callable[[str], Path], bayesnde: Callable) -> None:
    """The negative control: the refusals above are due to the damage. An `evaluate` that computes follows below."""
    copied("prepare/manifest.json")
    for command in [STATUS, POSTERIOR, DENSITY, NEW_DENSITY, EVALUATE, *APPLYING]:
        outcome = bayesnde(*command)
        assert outcome.code == 0, outcome.err
        assert "warning: run/" not in outcome.err


@pytest.mark.parametrize(
    ("stage", "command"),
    [("posterior/test", POSTERIOR), ("density/test", DENSITY), (NEW, NEW_DENSITY), ("evaluate/test", EVALUATE)],
)
def test_a_stage_killed_between_its_last_table_and_its_manifest_is_recognised(
    stage: str, command: list[str], copied: Callable[[str], Path], whole: Path, bayesnde: Callable
) -> None:
    manifest = copied(f"{stage}/manifest.json")
    manifest.unlink()
    label = f"{manifest.parent.parent.name}/{manifest.parent.name}"
    assert re.search(rf"{label} +interrupted ", bayesnde("status").out)
    if stage == "density/test":
        refused = bayesnde(*EVALUATE)
        assert (refused.code, refused.err) == (
            3,
            "error: density/test is missing or incomplete\n"
            "  no run/density/test/manifest.json\n"
            "hint: run `bayesnde density`\n",
        )
    assert bayesnde(*command).code == 0
    assert re.search(rf"{label} +done ", bayesnde("status", "--verify").out)
    for name in ("density.parquet", "diagnostics.parquet", "metrics.json"):
        if (manifest.parent / name).exists():
            assert (manifest.parent / name).read_bytes() == _place(whole, f"{stage}/{name}").read_bytes()


@pytest.mark.parametrize(
    ("stage", "command"),
    [
        ("prepare", ["prepare", "d.csv", "--condition", "k", "--scale", "marginal"]),
        ("posterior/test", [*POSTERIOR, "--restart"]),
        ("density/test", [*DENSITY, "--restart"]),
        (NEW, [*NEW_DENSITY, "--restart"]),
    ],
)
def test_leftovers_of_a_killed_process_are_swept(
    stage: str, command: list[str], copied: Callable[[str], Path], bayesnde: Callable
) -> None:
    """A file, a folder of half a stage, and a folder that a restart had put aside."""
    folder = copied(f"{stage}/manifest.json").parent
    dead = f".tmp-{HOST}-{2**22 + 1}-0123abcd-"  # no process has such a number
    alive = folder / f".tmp-{HOST}-{os.getpid()}-0123abcd-table.parquet"
    for left in (folder / f"{dead}table.parquet", alive, folder / f"{dead}staging" / "train.parquet"):
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(b"half")
    is_per_set = folder.parent.name != "run"
    aside = folder.parent / f"{dead}old"
    if is_per_set:
        aside.mkdir()
    assert bayesnde(*command).code == 0
    found = [path.name for path in Path("run").rglob(".tmp-*")]
    # A restart of a scoring stage removes its folder with all that is in it.
    assert found == ([] if "--restart" in command else [alive.name])
