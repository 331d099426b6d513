"""A manifest says what a stage is; the stage is trusted only as far as its manifest and files agree."""

import json
import os
from dataclasses import replace

import pytest

from bayesnde_cli.artifacts import claims, manifest
from bayesnde_cli.artifacts.discard import discard
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.manifest import Manifest, StageState, stage_state
from bayesnde_cli.artifacts.sealed import sealed_bytes
from bayesnde_cli.artifacts.upstream import require, stale_inputs
from bayesnde_cli.errors import BadArtifact, MissingArtifact, SettingsDiffer, StageBusy, StaleArtifact

IDENTITY = {"seed": 7, "settings": {"scale": "marginal"}, "inputs": {"data": "a" * 64}}


def make_stage(layout: RunLayout, stage: str, set_name=None, *, reads=(), content=b"rows") -> Manifest:
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
        inputs={name: manifest.describe_input(layout.root / name) for name in reads},
        outputs=manifest.describe_outputs(folder, [folder / "out.bin"]),
        device="cpu",
        started="2025-01-31T12:00:00+00:00",
    )
    manifest.write(layout.manifest_file(stage, set_name), made)
    return made


@pytest.fixture
def layout(tmp_path, monkeypatch) -> RunLayout:
    monkeypatch.chdir(tmp_path)
    return RunLayout(tmp_path.relative_to(tmp_path) / "run")


def edit(layout: RunLayout, **changes: object) -> None:
    path = layout.manifest_file("prepare")
    document = {**json.loads(path.read_text()), **changes}
    document.pop("sha256")
    path.write_bytes(sealed_bytes(document))


def test_a_manifest_reads_back_as_it_was_written(layout):
    made = make_stage(layout, "prepare")
    assert manifest.read(layout.manifest_file("prepare")) == made
    assert {"bayesnde", "numpy", "pyarrow"} <= made.packages.keys()
    assert made.identity_hash == replace(made, ended="later", config={}).identity_hash


def test_a_manifest_from_before_there_were_results_is_sound(layout):
    make_stage(layout, "prepare")
    path = layout.manifest_file("prepare")
    document = json.loads(path.read_text())
    path.write_text(
        json.dumps(
            {name: document[name] for name in document if name not in ("result", "sha256")} | {"schema_version": 1}
        )
    )
    assert manifest.read(path).result == {}


@pytest.mark.parametrize("changes", [{"seed": 8}, {"run_id": "q" * 16}, {"result": {"mean_log_density": 3.0}}])
def test_a_manifest_that_was_changed_is_not_believed(layout, changes):
    make_stage(layout, "prepare")
    path = layout.manifest_file("prepare")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(BadArtifact) as caught:
        manifest.read(path)
    assert str(caught.value) == (
        "error: run/prepare/manifest.json is damaged\n"
        "  it does not say what its own sha256 says\n"
        "hint: run `bayesnde prepare DATA --restart`"
    )


def test_a_manifest_without_a_seal_is_not_believed(layout):
    make_stage(layout, "prepare")
    path = layout.manifest_file("prepare")
    document = json.loads(path.read_text())
    del document["sha256"]
    path.write_text(json.dumps(document))
    with pytest.raises(BadArtifact) as caught:
        manifest.read(path)
    assert caught.value.found == ("sha256 is not there",)


def test_a_manifest_of_another_data_set_is_not_believed(layout):
    make_stage(layout, "density", "test")
    make_stage(layout, "density", "new-1a2b3c4d")
    path = layout.manifest_file("density", "test")
    path.write_bytes(layout.manifest_file("density", "new-1a2b3c4d").read_bytes())
    with pytest.raises(BadArtifact) as caught:
        manifest.read(path)
    assert caught.value.found == ("it belongs to density/new-1a2b3c4d",)


def test_inputs_are_recorded_as_the_user_gave_them(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"x\n1\n")
    found = manifest.describe_input(tmp_path / "a.csv", given="../a.csv")
    assert found["path"] == "../a.csv"
    assert found["bytes"] == 4
    assert len(found["sha256"]) == 64


def test_a_run_is_named_by_what_it_was_asked_to_do():
    assert manifest.derive_run_id(IDENTITY) == manifest.derive_run_id(dict(reversed(IDENTITY.items())))
    assert len(manifest.derive_run_id(IDENTITY)) == 16
    assert manifest.derive_run_id(IDENTITY) != manifest.derive_run_id({**IDENTITY, "seed": 8})


def test_a_stage_is_fresh_then_up_to_date(layout):
    assert stage_state(layout, "prepare", IDENTITY) is StageState.FRESH
    make_stage(layout, "prepare")
    assert stage_state(layout, "prepare", IDENTITY) is StageState.UP_TO_DATE


def test_another_identity_is_refused_with_what_differs(layout):
    make_stage(layout, "prepare")
    wanted = {"seed": 8, "settings": {"scale": "standard"}, "inputs": {"data": "b" * 64}}
    with pytest.raises(SettingsDiffer) as caught:
        stage_state(layout, "prepare", wanted)
    assert str(caught.value) == (
        "error: prepare was made with other settings or data\n"
        "  inputs.data: aaaaaaaaaaaa… -> bbbbbbbbbbbb…\n"
        "  seed: 7 -> 8\n"
        "  settings.scale: 'marginal' -> 'standard'\n"
        "hint: run `bayesnde prepare DATA --restart` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`"
    )


def test_a_missing_output_is_named(layout):
    make_stage(layout, "prepare")
    os.unlink("run/prepare/out.bin")
    with pytest.raises(BadArtifact) as caught:
        stage_state(layout, "prepare", IDENTITY)
    assert str(caught.value) == (
        "error: run/prepare/out.bin is not what prepare wrote\n"
        "  it is missing\n"
        "hint: run `bayesnde prepare DATA --restart`"
    )


@pytest.mark.parametrize(
    ("content", "deep", "found"),
    [(b"rowsrows", (), "8 bytes instead of 4"), (b"ROWS", ("out.bin",), "same size, other content")],
)
def test_a_changed_output_is_named(layout, content, deep, found):
    made = make_stage(layout, "density", "test")
    folder = layout.stage_dir("density", "test")
    manifest.check_outputs(made, folder, deep=["out.bin"])
    (folder / "out.bin").write_bytes(content)
    with pytest.raises(BadArtifact) as caught:
        manifest.check_outputs(made, folder, deep=deep)
    assert str(caught.value) == (
        f"error: run/density/test/out.bin is not what density wrote\n  {found}\nhint: run `bayesnde density --restart`"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"[]", "not a JSON object"),
        (b"{}", "schema_version is None"),
        (b'{"schema_version": true}', "schema_version is True"),
        (b'{"schema_version": 1}', "config is not there"),
    ],
)
def test_a_damaged_manifest_is_named(layout, text, found):
    make_stage(layout, "prepare")
    layout.manifest_file("prepare").write_bytes(text)
    with pytest.raises(BadArtifact) as caught:
        manifest.read(layout.manifest_file("prepare"))
    assert str(caught.value) == (
        f"error: run/prepare/manifest.json is damaged\n  {found}\nhint: run `bayesnde prepare DATA --restart`"
    )


def test_bytes_that_are_no_text_are_damage(layout):
    make_stage(layout, "prepare")
    layout.manifest_file("prepare").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(BadArtifact):
        manifest.read(layout.manifest_file("prepare"))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"extra": 1}, "extra is unknown"),
        ({"identity": []}, "identity is []"),
        ({"stage": 1}, "stage is 1"),
        ({"stage": "refine"}, "it belongs to refine"),
        ({"set_name": "../.."}, "it belongs to prepare/../.."),
        ({"seed": "7"}, "seed is '7'"),
        ({"inputs": {"../x": {"sha256": "x", "bytes": 1}}}, "input '../x' is outside of the run"),
        ({"outputs": {"a": {}}}, "outputs: a has no SHA-256 and size"),
        ({"inputs": {"a": {"sha256": "x", "bytes": -1}}}, "inputs: a has no SHA-256 and size"),
        ({"inputs": {"a": {"sha256": "x", "bytes": 1, "path": ["b"]}}}, "inputs: a has the path ['b']"),
    ],
)
def test_a_manifest_of_another_shape_is_damaged(layout, changes, found):
    make_stage(layout, "prepare")
    edit(layout, **changes)
    with pytest.raises(BadArtifact) as caught:
        manifest.read(layout.manifest_file("prepare"))
    assert caught.value.found == (found,)


def test_a_newer_manifest_is_not_guessed_at(layout):
    make_stage(layout, "prepare")
    edit(layout, schema_version=3)
    with pytest.raises(BadArtifact) as caught:
        manifest.read(layout.manifest_file("prepare"))
    assert str(caught.value) == (
        "error: run/prepare/manifest.json was written by a newer bayesnde\n"
        "  schema version 3, this bayesnde reads up to 2\n"
        "hint: upgrade bayesnde, or run `bayesnde prepare DATA --restart`"
    )


@pytest.mark.parametrize("name", ["../x", "../../etc/passwd", "/etc/passwd", "a/../../x", "", "..\\x", "a\0b"])
def test_an_output_outside_of_the_folder_is_refused(layout, name):
    made = make_stage(layout, "prepare")
    outputs = {name: {"sha256": "0" * 64, "bytes": 0}}
    with pytest.raises(ValueError, match="outside"):
        manifest.write(layout.manifest_file("prepare"), replace(made, outputs=outputs))
    edit(layout, outputs=outputs)
    with pytest.raises(BadArtifact) as caught:
        manifest.read(layout.manifest_file("prepare"))
    assert caught.value.found == (f"output {name!r} is outside of the stage's folder",)


def make_chain(layout: RunLayout) -> None:
    make_stage(layout, "prepare")
    make_stage(layout, "warmstart", reads=["prepare/out.bin"])
    make_stage(layout, "density", "test", reads=["warmstart/out.bin"])


def test_a_finished_stage_can_be_built_upon(layout):
    make_chain(layout)
    assert require(layout, "density", "test").stage == "density"


def test_a_stage_that_was_not_run_is_missing(layout):
    with pytest.raises(MissingArtifact) as caught:
        require(layout, "warmstart")
    assert str(caught.value) == (
        "error: warmstart is not there, or not complete\n"
        "  no run/warmstart/manifest.json\n"
        "hint: run `bayesnde prepare DATA`, then `bayesnde warmstart`"
    )


def test_a_stage_whose_input_was_made_again_is_stale(layout):
    make_chain(layout)
    make_stage(layout, "prepare", content=b"other rows")
    with pytest.raises(StaleArtifact) as caught:
        require(layout, "warmstart")
    assert str(caught.value) == (
        "error: warmstart was made from files that have changed since\n"
        "  prepare/out.bin is not the one that warmstart read\n"
        "hint: run `bayesnde warmstart --restart`"
    )


def test_staleness_reaches_all_the_way_down(layout):
    make_chain(layout)
    make_stage(layout, "prepare", content=b"other rows")
    found = manifest.read(layout.manifest_file("density", "test"))
    assert stale_inputs(layout, found) == ["prepare/out.bin is not the one that warmstart read"]
    discard(layout, "warmstart")
    assert stale_inputs(layout, found) == ["warmstart is gone"]


def test_the_same_content_made_again_is_not_stale(layout):
    make_chain(layout)
    make_stage(layout, "prepare")
    assert require(layout, "warmstart").stage == "warmstart"


def test_what_is_read_of_a_stage_is_compared_with_its_hash(layout):
    make_stage(layout, "prepare")
    (layout.stage_dir("prepare") / "out.bin").write_bytes(b"ROWS")
    assert require(layout, "prepare").stage == "prepare"  # by its size
    with pytest.raises(BadArtifact) as caught:
        require(layout, "prepare", reading=["out.bin"])
    assert str(caught.value) == (
        "error: run/prepare/out.bin is not what prepare wrote\n"
        "  same size, other content\n"
        "hint: run `bayesnde prepare DATA --restart`"
    )


def test_what_is_read_of_a_stage_must_be_among_its_outputs(layout):
    make_stage(layout, "prepare")
    with pytest.raises(BadArtifact) as caught:
        require(layout, "prepare", reading=["schema.json"])
    assert str(caught.value) == (
        "error: run/prepare/manifest.json is damaged\n"
        "  schema.json is not among the outputs\n"
        "hint: run `bayesnde prepare DATA --restart`"
    )


def test_an_output_that_is_a_link_out_of_the_folder_is_refused(layout, tmp_path):
    made = make_stage(layout, "prepare")
    out = layout.stage_dir("prepare") / "out.bin"
    out.rename(tmp_path / "elsewhere")
    out.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadArtifact) as caught:
        manifest.check_outputs(made, out.parent)
    assert caught.value.found == (f"it is a link to {tmp_path / 'elsewhere'}, outside of the stage's folder",)


def test_a_run_and_a_stage_may_be_links(layout, tmp_path):
    made = make_stage(layout, "prepare")
    layout.stage_dir("prepare").rename(tmp_path / "large-disk")
    layout.stage_dir("prepare").symlink_to(tmp_path / "large-disk")
    manifest.check_outputs(made, layout.stage_dir("prepare"), deep=made.outputs)


def test_discarding_removes_the_whole_stage_and_no_other(layout):
    make_chain(layout)
    assert discard(layout, "density", "test") is True
    assert discard(layout, "density", "test") is False
    assert os.listdir("run/density") == []
    assert stage_state(layout, "warmstart", IDENTITY) is StageState.UP_TO_DATE


def test_a_stage_at_work_is_not_discarded(layout):
    make_chain(layout)
    with claims.claim(layout.claim_file("density", "test", 3)):
        who = claims.holder(layout.claim_file("density", "test", 3))
        with pytest.raises(StageBusy) as caught:
            discard(layout, "density", "test")
    assert str(caught.value) == (
        "error: density/test cannot be removed: it is being made\n"
        f"  {who}\n"
        "hint: wait for it or stop it, then run the same command again"
    )
    assert discard(layout, "density", "test") is True
