"""`warmstart` and `refine`: the model is fitted, resumably, and its best epoch by validation rows is kept."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.forgetting import forget_checkpoint, forget_leftover
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.manifest import Manifest, StageState
from bayesnde_cli.artifacts.upstream import require
from bayesnde_cli.config import RefineConfig, TrainingConfig, WarmstartConfig
from bayesnde_cli.data.image import N_LEVELS
from bayesnde_cli.stages.outputs import tidy, workplace
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.training.sizes import has_class_maps, refuse_misfits

# Of the outputs of a stage, those that decide what a training stage makes.
_READ = {"prepare": ("train.parquet", "validation.parquet", "schema.json"), "warmstart": ("weights/model.npz",)}


@dataclass(frozen=True)
class Trained:
    """What a training stage made."""

    folder: str
    is_up_to_date: bool
    epoch: float | None
    step: int
    selected_by: str
    validation_log_density: float
    validation_se: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        place = f"step {self.step:,}" if self.epoch is None else f"epoch {self.epoch:.6g}"
        text = (
            f"{self.folder}: {place} chosen, validation log-density {self.validation_log_density:.4f} "
            f"± {2 * self.validation_se:.4f} (units of the file, ± 2 standard errors)"
        )
        return f"{text} (up to date)" if self.is_up_to_date else text


def run_warmstart(
    layout: RunLayout, config: WarmstartConfig, report: Report, *, is_restart: bool, is_verbose: bool
) -> Trained:
    """Fit the model from scratch."""
    upstream = {"prepare": require(layout, "prepare", reading=_READ["prepare"])}
    return _run(layout, config, report, upstream=upstream, is_restart=is_restart, is_verbose=is_verbose)


def run_refine(
    layout: RunLayout, config: RefineConfig, report: Report, *, is_restart: bool, is_verbose: bool
) -> Trained:
    """Go on from the warm start."""
    upstream = {stage: require(layout, stage, reading=names) for stage, names in _READ.items()}
    return _run(layout, config, report, upstream=upstream, is_restart=is_restart, is_verbose=is_verbose)


def _run(
    layout: RunLayout, config: TrainingConfig, report: Report,
    *, upstream: dict[str, Manifest], is_restart: bool, is_verbose: bool,
) -> Trained:  # fmt: skip
    stage = config.stage
    seed = upstream["prepare"].seed if config.seed is None else config.seed
    config = replace(config, seed=seed)
    inputs = {
        f"{name}/{output}": {**manifest.outputs[output], "path": f"{name}/{output}"}
        for name, manifest in upstream.items()
        for output in _READ[name]
    }
    hashes = {name: entry["sha256"] for name, entry in inputs.items()}
    identity = {"settings": config.identity() | _of_images(layout, config), "inputs": hashes}
    if not is_restart and manifests.stage_state(layout, stage, identity) is StageState.UP_TO_DATE:
        tidy(layout, stage)
        forget_leftover(layout, stage, identity)
        return _trained(layout, manifests.read(layout.manifest_file(stage)), is_up_to_date=True)

    with workplace(layout, stage) as place:
        from bayesnde_cli.model.backend import load_tensorflow

        device = load_tensorflow(verbose=is_verbose, device=config.device, threads=config.threads).device
        from bayesnde_cli.stages.training.checkpoints import Checkpoints
        from bayesnde_cli.stages.training.fitting import fit
        from bayesnde_cli.stages.training.writing import write_results

        run_id = upstream["prepare"].run_id
        checkpoints = Checkpoints(layout, config, identity, is_restart=is_restart)
        result = fit(layout, config, checkpoints, report)
        outputs = write_results(place.folder, layout, stage, result, run_id=run_id)
        look = result.looks[result.chosen]
        chosen = {name: look[name] for name in ("phase", "epoch", "step", "marginal")} | {"by": config.select}
        manifest = place.finish(
            outputs, result.config, seed=seed, identity=identity, inputs=inputs, run_id=run_id, device=device,
            result={"chosen": chosen},
        )  # fmt: skip
        forget_checkpoint(layout, stage)
    return _trained(layout, manifest, is_up_to_date=False)


def _of_images(layout: RunLayout, config: TrainingConfig) -> dict[str, Any]:
    """What settings come to for images: the first ones that were trained had points for cells, and no class maps."""
    if not isinstance(config, WarmstartConfig):
        return {}
    schema = read_schema(layout)
    refuse_misfits(config, len(schema.classes), are_images=schema.image is not None)
    if schema.image is None:
        return {"class_maps": None}
    levels = {"levels": N_LEVELS} if config.cells else {}
    return levels | {"class_maps": has_class_maps(config, len(schema.classes)) or None}


def _trained(layout: RunLayout, manifest: Manifest, *, is_up_to_date: bool) -> Trained:
    from bayesnde_cli.artifacts.tables import read_table

    selection = read_table(layout.selection_file(manifest.stage), "selection").to_pylist()
    chosen = next(row for row in selection if row["is_chosen"])
    return Trained(
        folder=str(layout.stage_dir(manifest.stage)),
        is_up_to_date=is_up_to_date,
        epoch=chosen["epoch"],
        step=chosen["step"],
        selected_by=manifest.config["select"],
        validation_log_density=chosen["marginal"],
        validation_se=chosen["marginal_se"],
    )
