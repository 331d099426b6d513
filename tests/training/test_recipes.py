"""How long a stage trains, and the cells and class maps of its networks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import fake_training
from bayesnde_cli.model.coders import Networks
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings import stage_settings
from bayesnde_cli.settings.stage_settings import RefineSettings, TrainingSettings, WarmstartSettings
from bayesnde_cli.stages.loading import read_networks
from bayesnde_cli.training.recipes import Sizes

BATCH = 256
SMALL = ["--width=2", "--epochs=2", "--checks=1", "--validation-draws=4", "--generated-rows=50", "-q"]
COUNTS, SIZES, WORDS, MONEY = range(4)


@pytest.mark.parametrize(
    ("config", "n_rows", "kind", "expected"),
    [
        (WarmstartSettings(), 60 * BATCH, "mlp", 25),  # 1,500 steps
        (RefineSettings(), 60 * BATCH, "mlp", 17),  # 1,000 in the first cycle
        (RefineSettings(), 60 * BATCH, "residual", 17),
        (WarmstartSettings(), 6000 * BATCH, "mlp", 1),
        (RefineSettings(), 8 * BATCH, "mlp", 125),
        (WarmstartSettings(objective="egm"), 60 * BATCH, "mlp", 100),  # 6,000 steps
        (RefineSettings(latent_update="map"), 6000 * BATCH, "mlp", 30),  # a large table is seen several times
        (RefineSettings(latent_update="map"), 8 * BATCH, "mlp", 400),  # a small one has a limit
        (WarmstartSettings(steps=1000), 60 * BATCH, "mlp", 17),  # whole epochs
        (WarmstartSettings(steps=10000), 8 * BATCH, "mlp", 1250),
        (WarmstartSettings(steps=1000, epochs=3), 60 * BATCH, "mlp", 3),
    ],
)
def test_epochs(config: TrainingSettings, n_rows: int, kind: Any, expected: int) -> None:
    spec = NetworkSpec(2, 2, kind=kind, width=8, depth=1)
    assert Sizes(config, Networks(spec, spec), n_rows).n_epochs == expected


def _run(*arguments: object) -> None:
    from bayesnde_cli.cli.main import run

    with fake_training.installed():  # the networks are tested, not their weights
        assert run([str(argument) for argument in arguments]) == 0


def test_training_stores_cells_and_sees_fresh_noise_unless_told_otherwise(run: Path, tmp_path: Path) -> None:
    losses = []
    for name, flags in (("with", ()), ("without", ("--no-cells", "--no-fresh-noise"))):
        own = Path(shutil.copytree(run, tmp_path / name))
        _run("warmstart", "--run", own, *SMALL, *flags)
        stored = read_networks(RunLayout(own), "warmstart")
        assert bool(stored.decoder.cells) == (name == "with")
        assert stored.encoder.cells == ()
        losses.append(pq.read_table(own / "warmstart/history.parquet")["loss"].to_pylist())
    assert losses[0] != losses[1]


def _prepare_images(folder: Path, n_classes: int, *options: str) -> Path:
    images = np.random.default_rng(1).integers(0, 256, (10 * max(n_classes, 6), 4, 4), np.uint8)
    labels: dict[str, Any] = {"label": np.arange(len(images)) % n_classes} if n_classes else {}
    np.savez(folder / "a.npz", images=images, **labels)
    condition = ("--condition", "label") if n_classes else ()
    _run("prepare", folder / "a.npz", "--run", folder / "run", "-q", *condition, *options)
    return folder / "run"


@pytest.mark.parametrize(
    ("n_classes", "flags", "has_maps"),
    [(3, (), True), (3, ("--no-class-maps", "--no-cells"), False), (stage_settings.MOST_MAPPED_CLASSES + 1, (), False)],
)
def test_images_have_levels_and_a_latent_map_for_each_class(
    tmp_path: Path, n_classes: int, flags: tuple[str, ...], has_maps: bool
) -> None:
    run = _prepare_images(tmp_path, n_classes)
    layout = RunLayout(run)
    _run("warmstart", "--run", run, *SMALL, *flags)
    stored = read_networks(layout, "warmstart")
    has_levels = "--no-cells" not in flags
    assert (stored.decoder.levels, stored.encoder.levels) == (256 if has_levels else 0, 0)
    assert (stored.decoder.class_maps, stored.encoder.class_maps) == (has_maps, False)
    assert stored.weights["decoder/dense/kernel"].shape[0] == 10 + n_classes + 10 * n_classes * has_maps
    assert json.loads((run / "warmstart/manifest.json").read_text())["config"]["class_maps"] is has_maps


@pytest.mark.parametrize(("is_table", "found"), [(True, "a table, 3 classes"), (False, "images, no classes")])
def test_class_maps_are_refused_where_they_mean_nothing(
    bayesnde: Callable, tmp_path: Path, is_table: bool, found: str
) -> None:
    run = _prepare_images(tmp_path, 3, "--scale", "marginal") if is_table else _prepare_images(tmp_path, 0)
    outcome = bayesnde("warmstart", "--run", run, *SMALL, "--class-maps")
    expected = f"error: --class-maps needs images and a condition\n  {found}\nhint: leave out --class-maps\n"
    assert (outcome.code, outcome.err) == (2, expected)
