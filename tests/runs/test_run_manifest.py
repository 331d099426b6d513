"""A manifest says what a stage is; a stage is published whole or not at all, and not discarded while it is made."""

import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesnde_cli.errors import BadArtifact, MissingArtifact, SettingsDiffer, StageBusy, StaleArtifact
from bayesnde_cli.runs.files import holder, holding, json_bytes, running, write_arrays
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import (
    Manifest,
    compare,
    derive_run_id,
    describe_file,
    describe_outputs,
    discard,
    forget_leftover,
    is_stage_done,
    require,
    stale_inputs,
    workplace,
)
from bayesnde_cli.settings.stage_settings import PrepareSettings

IDENTITY: dict[str, Any] = {"seed": 7, "settings": {"scale": "marginal"}, "inputs": {"data": "a" * 64}}
OURS, OTHERS = {"settings": {"epochs": 3}}, {"settings": {"epochs": 4}}
NAMES = ("a.parquet", "inner/b.parquet")
FACTS: dict[str, Any] = {"run_id": "r", "identity": IDENTITY, "seed": 7, "inputs": {}}


def make_stage(
    layout: RunLayout, stage: str, set_name: str | None = None, *, reads: Sequence[str] = (), content: bytes = b"rows"
) -> Manifest:
    """A finished stage with one output, `out.bin`, which reads files of the run."""
    folder = layout.stage_dir(stage, set_name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "out.bin").write_bytes(content)
    made = Manifest(
        stage=stage,
        set_name=set_name,
        run_id="r" * 16,
        identity=IDENTITY,
        config={"scale": "marginal", "units": [64, 64]},
        seed=7,
        inputs={name: {**describe_file(layout.root / name), "path": name} for name in reads},
        outputs=describe_outputs(folder, [folder / "out.bin"]),
        device="cpu",
        started="2025-01-31T12:00:00+00:00",
    )
    made.write(layout.manifest_file(stage, set_name))
    return made


def make_chain(layout: RunLayout) -> None:
    make_stage(layout, "prepare")
    make_stage(layout, "warmstart", reads=["prepare/out.bin"])
    make_stage(layout, "density", "test", reads=["warmstart/out.bin"])


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    monkeypatch.chdir(tmp_path)
    return RunLayout(Path("run"))


def refusal(layout: RunLayout) -> BadArtifact:
    with pytest.raises(BadArtifact) as caught:
        Manifest.read(layout.manifest_file("prepare"))
    return caught.value


def test_a_manifest_reads_back_as_it_was_written(layout: RunLayout) -> None:
    made = make_stage(layout, "prepare")
    assert Manifest.read(layout.manifest_file("prepare")) == made
    assert {"bayesnde", "numpy", "pyarrow"} <= made.packages.keys()


def test_a_run_is_named_by_what_it_was_asked_to_do() -> None:
    assert derive_run_id(IDENTITY) == derive_run_id(dict(reversed(IDENTITY.items())))
    assert len(derive_run_id(IDENTITY)) == 16
    assert derive_run_id(IDENTITY) != derive_run_id({**IDENTITY, "seed": 8})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"[]", "not a JSON object"),
        (b'{"schema_version": 1}', "stage: Field required"),
    ],
)
def test_a_damaged_manifest_is_named(layout: RunLayout, text: bytes, found: str) -> None:
    make_stage(layout, "prepare")
    layout.manifest_file("prepare").write_bytes(text)
    assert str(refusal(layout)) == (
        f"error: run/prepare/manifest.json is damaged\n  {found}\nhint: run `bayesnde prepare DATA --restart`"
    )


def test_a_manifest_of_another_version_is_refused(layout: RunLayout) -> None:
    make_stage(layout, "prepare")
    path = layout.manifest_file("prepare")
    path.write_bytes(json_bytes({**json.loads(path.read_text()), "schema_version": 2}))
    assert str(refusal(layout)) == (
        "error: run/prepare/manifest.json has another format version\n"
        "  schema version 2, this bayesnde reads 1\n"
        "hint: run `bayesnde prepare DATA --restart`"
    )


def test_another_identity_is_refused_with_what_differs(layout: RunLayout) -> None:
    make_stage(layout, "prepare")
    wanted = {"seed": 8, "settings": {"scale": "standard"}, "inputs": {"data": "b" * 64}}
    with pytest.raises(SettingsDiffer) as caught:
        is_stage_done(layout, "prepare", wanted)
    assert str(caught.value) == (
        "error: prepare was made with other settings or data\n"
        "  inputs.data: aaaaaaaaaaaa… -> bbbbbbbbbbbb…\n"
        "  seed: 7 -> 8\n"
        "  settings.scale: 'marginal' -> 'standard'\n"
        "hint: run `bayesnde prepare DATA --restart` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`"
    )


def test_values_that_python_takes_for_equal_are_told_apart() -> None:
    assert compare({"a": 1, "b": 1, "c": {}}, {"a": True, "b": 1.0}) == [
        "a: 1 -> True",
        "b: 1 -> 1.0",
        "c: {} -> (none)",
    ]


@pytest.mark.parametrize(
    ("content", "hashed", "found"),
    [(b"rowsrows", (), "8 bytes instead of 4"), (b"ROWS", ("out.bin",), "same size, other content")],
)
def test_a_changed_output_is_named(layout: RunLayout, content: bytes, hashed: list[str], found: str) -> None:
    made = make_stage(layout, "density", "test")
    folder = layout.stage_dir("density", "test")
    made.check_outputs(folder, hashed=["out.bin"])
    (folder / "out.bin").write_bytes(content)
    with pytest.raises(BadArtifact) as caught:
        made.check_outputs(folder, hashed=hashed)
    assert str(caught.value) == (
        f"error: run/density/test/out.bin is not what density wrote\n  {found}\nhint: run `bayesnde density --restart`"
    )


def test_a_stage_that_was_not_run_is_missing(layout: RunLayout) -> None:
    with pytest.raises(MissingArtifact) as caught:
        require(layout, "warmstart")
    assert str(caught.value) == (
        "error: warmstart is missing or incomplete\n"
        "  no run/warmstart/manifest.json\n"
        "hint: run `bayesnde prepare DATA`, then `bayesnde warmstart`"
    )


def test_a_stage_whose_input_was_made_again_is_stale(layout: RunLayout) -> None:
    make_chain(layout)
    assert require(layout, "density", "test").stage == "density"
    make_stage(layout, "prepare")  # the same content
    assert require(layout, "warmstart").stage == "warmstart"
    make_stage(layout, "prepare", content=b"other rows")
    with pytest.raises(StaleArtifact) as caught:
        require(layout, "warmstart")
    assert str(caught.value) == (
        "error: warmstart was made from files that have changed since\n"
        "  prepare/out.bin is not the one that warmstart read\n"
        "hint: run `bayesnde warmstart --restart`"
    )
    # Staleness reaches all the way down.
    found = Manifest.read(layout.manifest_file("density", "test"))
    assert stale_inputs(layout, found) == ["prepare/out.bin is not the one that warmstart read"]
    shutil.rmtree(layout.stage_dir("warmstart"))
    assert stale_inputs(layout, found) == ["warmstart is missing"]


def test_files_that_are_read_are_checked_against_their_hashes(layout: RunLayout) -> None:
    make_stage(layout, "prepare")
    (layout.stage_dir("prepare") / "out.bin").write_bytes(b"ROWS")
    assert require(layout, "prepare").stage == "prepare"  # by its size
    with pytest.raises(BadArtifact, match="same size, other content"):
        require(layout, "prepare", reading=["out.bin"])


# A stage's folder while the stage is made


@pytest.fixture
def replaced(layout: RunLayout) -> RunLayout:
    """A run whose `prepare` is about to be made again."""
    folder = layout.stage_dir("prepare")
    (folder / "inner").mkdir(parents=True)
    for name in (*NAMES, "manifest.json"):
        (folder / name).write_text("old")
    return layout


def contents(layout: RunLayout) -> list[str]:
    return [(layout.stage_dir("prepare") / name).read_text() for name in NAMES]


def make_again(layout: RunLayout, *, loses_claim: bool = False) -> Manifest:
    with workplace(layout, "prepare") as place:
        (place.folder / "inner").mkdir()
        for name in NAMES:
            (place.folder / name).write_text("new")
        if loses_claim:
            layout.claim_file("prepare").unlink()
        return place.finish(NAMES, PrepareSettings(), **FACTS)


@pytest.mark.parametrize("n_done", [0, 1, 2])
def test_a_kill_between_two_renames_leaves_no_manifest(replaced: RunLayout, n_done: int) -> None:
    child = os.fork()
    if child == 0:  # pragma: no cover
        replace, n_before = os.replace, -1  # the manifest itself is written by a rename in the staging folder

        def kill_at_rename(source: Path, target: Path) -> None:
            nonlocal n_before
            if n_before == n_done:
                os.kill(os.getpid(), signal.SIGKILL)
            n_before += 1
            replace(source, target)

        os.replace = kill_at_rename  # type: ignore[assignment]
        make_again(replaced)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert contents(replaced) == ["new"] * n_done + ["old"] * (2 - n_done)
    assert not replaced.manifest_file("prepare").exists()
    # The next process sweeps what is left and publishes everything.
    made = make_again(replaced)
    assert contents(replaced) == ["new"] * 2
    assert Manifest.read(replaced.manifest_file("prepare")) == made
    assert sorted(os.listdir(replaced.stage_dir("prepare"))) == ["a.parquet", "inner", "manifest.json"]


def test_a_process_that_lost_its_claim_publishes_nothing(replaced: RunLayout) -> None:
    with pytest.raises(StageBusy, match="taken over"):
        make_again(replaced, loses_claim=True)
    assert contents(replaced) == ["old"] * 2
    assert replaced.manifest_file("prepare").read_text() == "old"


def test_discarding_removes_the_whole_stage_and_no_other(layout: RunLayout) -> None:
    for set_name in ("test", "other"):
        make_stage(layout, "density", set_name)
    discard(layout, "density", "test", is_wanted=lambda: False)
    assert layout.sets("density") == ["other", "test"]
    for _ in range(2):
        discard(layout, "density", "test")
        assert os.listdir(layout.root / "density") == ["other"]


def test_a_stage_at_work_is_not_discarded(layout: RunLayout) -> None:
    with holding(layout.claim_file("density", "test", 3)):
        who = holder(layout.claim_file("density", "test", 3))
        with pytest.raises(StageBusy) as caught:
            discard(layout, "density", "test")
    assert str(caught.value) == (
        "error: density/test cannot be removed: it is being made\n"
        f"  {who}\n"
        "hint: wait for it or stop it, then run the same command again"
    )
    discard(layout, "density", "test")
    assert layout.sets("density") == []


@pytest.mark.parametrize(
    ("identity", "is_busy", "is_half_removed", "n_left"),
    [(OURS, False, False, 0), (OURS, False, True, 0), (OTHERS, False, False, 3), (OURS, True, False, 3)],
    ids=["leftover", "half removed", "of a restart with other settings", "in use"],
)
def test_a_leftover_checkpoint_is_removed_and_no_other(
    layout: RunLayout, identity: dict[str, Any], is_busy: bool, is_half_removed: bool, n_left: int
) -> None:
    write_arrays(layout.checkpoint_file("refine"), {"a": np.ones(2)}, {"identity": OURS})
    for check in (0, 3):
        write_arrays(layout.check_file("refine", check), {"a": np.ones(2)}, {})
    if is_half_removed:
        layout.checkpoint_file("refine").unlink()
    if is_busy:
        with running(layout, "refine"):
            forget_leftover(layout, "refine", identity)
    else:
        forget_leftover(layout, "refine", identity)
    assert len(os.listdir(layout.checkpoint_dir("refine"))) == n_left
    assert os.listdir(layout.stage_dir("refine")) == ["checkpoint"]
