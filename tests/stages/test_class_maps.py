"""Maps of the latents for each class of images: who has them, and warm starts of before."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fake_training
from bayesnde_cli.artifacts.arrays import read_arrays, write_arrays
from bayesnde_cli.artifacts.fingerprint import sha256_json
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.sealed import SEAL, sealed_bytes
from bayesnde_cli.config.training import MOST_MAPPED_CLASSES
from bayesnde_cli.errors import BadArtifact, Stopped
from bayesnde_cli.stages.training.checkpoints import Checkpoints
from bayesnde_cli.stages.weights import read_networks

SMALL = ["--width", "2", "--epochs", "1", "--checks", "1", "--validation-draws", "4", "--generated-rows", "50", "-q"]


def _prepared(folder: Path, n_classes: int, *options: str) -> Path:
    from bayesnde_cli.cli.main import run

    images = np.random.default_rng(1).integers(0, 256, (10 * max(n_classes, 6), 4, 4), np.uint8)
    labels = {"label": np.arange(len(images)) % n_classes} if n_classes else {}
    np.savez(folder / "a.npz", images=images, **labels)
    condition = ("--condition", "label") if n_classes else ()
    assert run(["prepare", str(folder / "a.npz"), "--run", str(folder / "run"), "-q", *condition, *options]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm start of images of three classes. Not to be written to."""
    from bayesnde_cli.cli.main import run

    own = _prepared(tmp_path_factory.mktemp("classes"), 3)
    with fake_training.installed():
        assert run(["warmstart", "--run", str(own), *SMALL]) == 0
    return own


@pytest.fixture
def own(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, to work on."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _manifest(run: Path) -> dict:
    return json.loads((run / "warmstart/manifest.json").read_text())


def test_images_with_a_condition_have_them_and_the_manifest_says_so(trained: Path) -> None:
    stored = read_networks(RunLayout(trained), "warmstart")
    assert (stored.decoder.class_maps, stored.encoder.class_maps) == (True, False)
    assert stored.weights["decoder/dense/kernel"].shape[0] == 10 + 3 + 30
    assert _manifest(trained)["config"]["class_maps"] is True


@pytest.mark.parametrize(("n_classes", "options"), [(3, ("--no-class-maps",)), (0, ()), (MOST_MAPPED_CLASSES + 1, ())])
def test_who_has_none(bayesnde: Callable, tmp_path: Path, n_classes: int, options: tuple[str, ...]) -> None:
    run = _prepared(tmp_path, n_classes)
    with fake_training.installed():
        assert bayesnde("warmstart", "--run", run, *SMALL, *options).code == 0
    stored = read_networks(RunLayout(run), "warmstart")
    assert not stored.decoder.class_maps
    assert stored.weights["decoder/dense/kernel"].shape[0] == 10 + n_classes
    assert _manifest(run)["config"]["class_maps"] is False
    assert _manifest(run)["identity"]["settings"]["class_maps"] is None  # as that of warm starts of before


def test_a_warm_start_of_before_does_not_count_as_one_with_them(bayesnde: Callable, own: Path) -> None:
    found = _manifest(own)
    found.pop(SEAL)
    found["identity"]["settings"].pop("class_maps")
    (own / "warmstart/manifest.json").write_bytes(sealed_bytes(found))
    outcome = bayesnde("warmstart", "--run", own, *SMALL)
    assert (outcome.code, outcome.err) == (
        2,
        "error: warmstart was made with other settings or data\n  settings.class_maps: (none) -> True\n"
        f"hint: run `bayesnde warmstart --run {own} --restart` with the same options to make it again, "
        "or keep it and use another run directory with `--run OTHER`\n",
    )


def _rewritten(run: Path, change: Callable[[dict], object]) -> None:
    path = run / "warmstart/weights/model.npz"
    arrays, facts = read_arrays(path)
    change(facts["decoder"])
    write_arrays(path, arrays, facts)


@pytest.mark.parametrize("value", [False, 1, None, "yes"])
def test_what_does_not_fit_the_weights_is_refused(value: object, own: Path) -> None:
    _rewritten(own, lambda decoder: decoder.update(class_maps=value))
    with pytest.raises(BadArtifact, match="is damaged"):
        read_networks(RunLayout(own), "warmstart")


def test_networks_of_before_have_none(bayesnde: Callable, tmp_path: Path) -> None:
    run = _prepared(tmp_path, 3)
    with fake_training.installed():
        assert bayesnde("warmstart", "--run", run, *SMALL, "--no-class-maps").code == 0
    _rewritten(run, lambda decoder: decoder.pop("class_maps"))
    assert not read_networks(RunLayout(run), "warmstart").decoder.class_maps


@pytest.mark.parametrize("is_struck", [False, True])
def test_a_run_that_has_none_is_what_it_was_before_they_were_known(
    bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_struck: bool
) -> None:
    """A table, made or begun: the identities of before have no word on them."""
    run = _prepared(tmp_path, 3, "--scale", "marginal")

    def struck(*_: object) -> None:
        raise Stopped("SIGTERM")

    with fake_training.installed():
        if is_struck:
            with monkeypatch.context() as patch:
                patch.setattr(Checkpoints, "forget", struck)
                assert bayesnde("warmstart", "--run", run, *SMALL).code == 75
            state = run / "warmstart/checkpoint/state.npz"
            arrays, facts = read_arrays(state)
            assert facts["identity"]["settings"].pop("class_maps") is None
            write_arrays(state, arrays, facts)
            for path in state.parent.glob("look-*.npz"):
                arrays, of_look = read_arrays(path)
                write_arrays(path, arrays, of_look | {"identity": sha256_json(facts["identity"])})
        assert bayesnde("warmstart", "--run", run, *SMALL).code == 0
    for option in ((), ("--no-class-maps",)):
        assert bayesnde("warmstart", "--run", run, *SMALL, *option).out.endswith("(up to date)\n")


@pytest.mark.parametrize(("is_table", "found"), [(True, "a table, 3 classes"), (False, "images, no classes")])
def test_they_are_refused_where_they_mean_nothing(
    bayesnde: Callable, tmp_path: Path, is_table: bool, found: str
) -> None:
    run = _prepared(tmp_path, 3, "--scale", "marginal") if is_table else _prepared(tmp_path, 0)
    with fake_training.installed():  # also of a stage that is made
        assert bayesnde("warmstart", "--run", run, *SMALL).code == 0
    outcome = bayesnde("warmstart", "--run", run, *SMALL, "--class-maps")
    assert (outcome.code, outcome.err) == (
        2,
        f"error: only decoders of images with a condition have maps for each class\n  {found}\n"
        "hint: leave --class-maps out\n",
    )
