"""Every file of a run, damaged in every way: named and refused with the command that repairs it, or made again.

The commands that read a file are run on a copy of a complete run in which that one file is damaged.
"""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import whole_runs
from bayesnde_cli.artifacts.fingerprint import sha256_file
from bayesnde_cli.artifacts.processes import place
from bayesnde_cli.artifacts.sealed import sealed_bytes
from damages import emptied, flipped, newer, truncated
from whole_runs import FEW, SMALL

DAMAGES = {"truncated": truncated, "empty": emptied, "one bit": flipped, "another bit": flipped, "newer": newer}
SWAPPED = "of another run"
NEW = "density/new"  # the folder of the file new.csv, whose name ends with a hash

STATUS = ["status", "--verify"]
WARMSTART, REFINE, POSTERIOR, DENSITY = ["warmstart"], ["refine"], ["posterior", *SMALL], ["density", *SMALL]
NEW_DENSITY, EVALUATE = ["density", "new.csv", *SMALL], ["evaluate", *FEW]
SAMPLE, OUTLIERS, CLASSIFY = ["sample", "3"], ["outliers"], ["classify"]
GRID = ["grid", "a", "b", "--points", "3", "--draws", "100"]
APPLYING = [SAMPLE, OUTLIERS, CLASSIFY, GRID]
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
    "warmstart/selection.parquet": Reading([STATUS, [*EVALUATE, "--restart"]]),
    "refine/manifest.json": Reading([STATUS, DENSITY, EVALUATE, *APPLYING]),
    "refine/weights/model.npz": Reading([STATUS, DENSITY, EVALUATE, *APPLYING]),
    "refine/latents.parquet": Reading([STATUS, DENSITY, EVALUATE, *APPLYING]),
    "refine/history.parquet": Reading([STATUS, [*EVALUATE, "--restart"]]),
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


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete run. Not to be written to."""
    return _made(tmp_path_factory, 0)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same with other data."""
    return _made(tmp_path_factory, 1)


def _made(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as monkeypatch:
        whole_runs.install(monkeypatch)
        whole_runs.whole_run(folder, seed=seed)
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A fresh copy of the run, in which the commands are run, and the path of a file in it."""
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
    reading, chance = READ_BY[name], random.Random(name)
    for damage in (*DAMAGES, SWAPPED):
        if damage == "newer" and name.endswith(".html"):
            continue
        for command in reading.commands:
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
                _assert_named(path, outcome, case)
            elif reading.is_refused:
                _assert_refused(path, outcome, case)
            else:
                _assert_made_again(path, whole, outcome, case)
            shutil.rmtree(Path.cwd())


def _assert_named(path: Path, outcome: object, case: str) -> None:
    """`status` says that the stage, or what was made from it, is not sound, and what to type."""
    code, out, _ = outcome
    assert code == 3, case
    assert re.search(r" (damaged|stale) ", out), case
    assert "\nnext: bayesnde " in out, case
    assert "--restart" in out, case


def _assert_refused(path: Path, outcome: object, case: str) -> None:
    code, out, err = outcome
    # Another run's manifest or plan is whole: it says that it was made with other settings or data.
    is_other = "was made with other settings or data" in err
    assert code == (2 if is_other else 3), case
    assert err.startswith("error: "), case
    assert err.count("error: ") == 1, case
    assert "\nhint: " in err, case
    assert re.search(r"`bayesnde \w+|upgrade bayesnde|delete that file", err), case
    stage = path.relative_to(Path.cwd() / "run").parts[0]
    assert str(path.relative_to(Path.cwd())) in err or f"{stage}/" in err or f"error: {stage} " in err, case
    assert out == "", case


def _assert_made_again(path: Path, whole: Path, outcome: object, case: str) -> None:
    code, _, err = outcome
    assert code == 0, case
    assert f"warning: {path.relative_to(Path.cwd())} " in err, case
    made = "density/test/density.parquet" if "new.csv" not in case else f"{NEW}/density.parquet"
    assert _place(Path.cwd(), made).read_bytes() == _place(whole, made).read_bytes(), case


def test_undamaged_all_commands_end_well(copied: Callable[[str], Path], bayesnde: Callable) -> None:
    """The control: what is refused above is refused for the damage."""
    copied("prepare/manifest.json")
    commands = [STATUS, POSTERIOR, DENSITY, NEW_DENSITY, EVALUATE, [*EVALUATE, "--restart"], *APPLYING]
    for command in commands:
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
            "error: density/test is not there, or not complete\n"
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
def test_what_a_killed_process_left_is_swept(
    stage: str, command: list[str], copied: Callable[[str], Path], bayesnde: Callable
) -> None:
    """A file, a folder of half a stage, and a folder that a restart had put aside."""
    folder = copied(f"{stage}/manifest.json").parent
    dead = f".tmp-{place()}-{2**22 + 1}-0123abcd-"  # no process has such a number
    alive = folder / f".tmp-{place()}-{os.getpid()}-0123abcd-table.parquet"
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


@pytest.mark.parametrize("name", ["../../../secret", "{folder}/secret", "..\\secret"])
@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_a_manifest_that_leads_out_of_the_run_is_refused(
    name: str, kind: str, copied: Callable[[str], Path], bayesnde: Callable
) -> None:
    """Forged with care: the file is there, of this size and hash, and the manifest is sealed."""
    manifest = copied("prepare/manifest.json")
    name = name.format(folder=Path.cwd())
    Path("secret").write_bytes(b"secret")
    document = json.loads(manifest.read_bytes())
    document.pop("sha256")
    document[kind][name] = {"sha256": sha256_file(Path("secret")), "bytes": 6}
    manifest.write_bytes(sealed_bytes(document))
    whole = "run" if kind == "inputs" else "stage's folder"
    found = f"{kind.removesuffix('s')} {name!r} is outside of the {whole}"
    assert f"run/prepare/manifest.json is damaged: {found}" in bayesnde("status", "--verify").out
    for command in (WARMSTART, DENSITY, SAMPLE):
        outcome = bayesnde(*command)
        assert (outcome.code, outcome.err) == (
            3,
            f"error: run/prepare/manifest.json is damaged\n  {found}\nhint: run `bayesnde prepare DATA --restart`\n",
        )


def test_a_plan_that_leads_out_of_the_run_is_refused(copied: Callable[[str], Path], bayesnde: Callable) -> None:
    plan = copied("density/test/plan.json")
    (plan.parent / "manifest.json").unlink()
    document = json.loads(plan.read_bytes())
    document.pop("sha256")
    plan.write_bytes(sealed_bytes(document | {"set_name": "../../../etc", "n_rows": 10**18}))
    outcome = bayesnde(*DENSITY)
    assert (outcome.code, outcome.err) == (
        3,
        "error: run/density/test/plan.json is damaged\n"
        "  it belongs to density/../../../etc\n"
        "hint: run `bayesnde density --restart`\n",
    )
    assert "it belongs to density/../../../etc" in bayesnde("status").out


def test_a_table_that_is_a_link_out_of_the_run_is_refused(copied: Callable[[str], Path], bayesnde: Callable) -> None:
    table = copied("prepare/test.parquet")
    table.rename("elsewhere.parquet")
    table.symlink_to(Path("elsewhere.parquet").resolve())
    outcome = bayesnde(*DENSITY)
    assert (outcome.code, outcome.err) == (
        3,
        "error: run/prepare/test.parquet is not what prepare wrote\n"
        f"  it is a link to {Path('elsewhere.parquet').resolve()}, outside of the stage's folder\n"
        "hint: run `bayesnde prepare DATA --restart`\n",
    )
