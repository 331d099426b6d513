"""The stages `warmstart` and `refine`: fit the model, resumably, and keep the weights of the best validation check."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from bayesnde_cli.formatting import Report
from bayesnde_cli.model.stack import ALONE, Stack
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import LATENTS, SCHEMA, WEIGHTS, RunLayout, split_name
from bayesnde_cli.runs.manifest import (
    FileRecord,
    Manifest,
    forget_checkpoint,
    forget_leftover,
    is_stage_done,
    require,
    tidy,
    workplace,
)
from bayesnde_cli.runs.parquet_files import Stamp, read_table, write_table
from bayesnde_cli.settings import stage_settings
from bayesnde_cli.settings.stage_settings import RefineSettings, TrainingSettings, WarmstartSettings
from bayesnde_cli.stages.loading import StoredNetworks, read_networks, write_networks
from bayesnde_cli.tables.columns import N_LEVELS
from bayesnde_cli.tables.model_rows import read_schema, read_split

if TYPE_CHECKING:
    from bayesnde_cli.model.coders import Networks
    from bayesnde_cli.training.forecast import Forecast
    from bayesnde_cli.training.loop import Checkpoints, Once, Progress
    from bayesnde_cli.training.search import Candidate
    from bayesnde_cli.training.training_rows import TrainingRows

# Outputs of earlier stages that a training stage reads.
_READ = {"prepare": (split_name("train"), split_name("validation"), SCHEMA), "warmstart": (WEIGHTS,)}
_ENCODER_ROWS = 8192  # rows that the encoder takes at once


@dataclass(frozen=True)
class Trained:
    """Result of a training stage."""

    folder: str
    is_up_to_date: bool
    epoch: float | None
    step: int
    selected_by: str
    validation_log_density: float
    validation_se: float
    members: Mapping[str, float]  # weights in the run's density

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        position = f"step {self.step:,}" if self.epoch is None else f"epoch {self.epoch:.6g}"
        text = (
            f"{self.folder}: {position} chosen, validation log-density {self.validation_log_density:.4f} "
            f"± {2 * self.validation_se:.4f} (units of the file, ± 2 standard errors)"
        )
        if len(self.members) > 1:
            members = sorted(self.members.items(), key=lambda member: -member[1])  # files sort them by name
            text += f"; weights: {', '.join(f'{name} {weight:.2f}' for name, weight in members)}"
        return f"{text} (up to date)" if self.is_up_to_date else text


def run_warmstart(
    layout: RunLayout,
    config: WarmstartSettings,
    report: Report,
    *,
    is_restart: bool = False,
    is_verbose: bool = False,
    refine: RefineSettings | None = None,
) -> Trained:
    """Fit the model from random weights; if a refinement is to follow, the time that is expected includes it."""
    flags = {"is_restart": is_restart, "is_verbose": is_verbose}
    return _run(layout, config, report, refine, reading={"prepare": _READ["prepare"]}, **flags)


def run_refine(layout: RunLayout, config: RefineSettings, report: Report, **options: bool) -> Trained:
    """Refine the model of the warm start."""
    return _run(layout, config, report, None, reading=_READ, **options)


def _run(
    layout: RunLayout,
    config: TrainingSettings,
    report: Report,
    refine: RefineSettings | None,
    *,
    reading: Mapping[str, Sequence[str]],
    is_restart: bool = False,
    is_verbose: bool = False,
) -> Trained:
    """Train, unless the stage is done: read -> compute -> write."""
    stage, upstream = config.stage, {name: require(layout, name, reading=names) for name, names in reading.items()}
    seed = upstream["prepare"].seed if config.seed is None else config.seed
    config = config.model_copy(update={"seed": seed})
    if isinstance(config, WarmstartSettings):
        schema = read_schema(layout)
        config.check_data(len(schema.classes), are_images=schema.image is not None)
    inputs: dict[str, FileRecord] = {
        f"{name}/{output}": {**upstream[name].outputs[output], "path": f"{name}/{output}"}
        for name, outputs in reading.items()
        for output in outputs
    }
    hashes = {name: entry["sha256"] for name, entry in inputs.items()}
    identity = {"settings": config.identity(), "inputs": hashes}
    if isinstance(config, RefineSettings):  # the weight decay of the recipe, unless another one is given
        config = config.fill_in({"weight_decay": upstream["warmstart"].config["weight_decay"]})
    if not is_restart and is_stage_done(layout, stage, identity):
        tidy(layout, stage)
        forget_leftover(layout, stage, identity)
        return _summarise(layout, Manifest.read(layout.manifest_file(stage)), is_up_to_date=True)

    with workplace(layout, stage) as place:
        from bayesnde_cli.model.backend import load_tensorflow

        device = load_tensorflow(verbose=is_verbose, device=config.device, threads=config.threads).device
        from bayesnde_cli.training.loop import Checkpoints

        run_id = upstream["prepare"].run_id
        fitted = _fit(layout, config, Checkpoints(layout, config, identity, is_restart=is_restart), report, refine)
        outputs = _write(place.folder, layout, fitted, run_id=run_id)
        check = fitted.progress.checks[fitted.chosen]
        chosen = {name: check[name] for name in ("phase", "epoch", "step", "marginal")} | {"by": config.select}
        manifest = place.finish(
            outputs,
            fitted.settings,
            seed=seed,
            identity=identity,
            inputs=inputs,
            run_id=run_id,
            device=device,
            result={
                "chosen": chosen,
                "members": dict(fitted.stack.weights),
                "member_settings": dict(fitted.member_settings),
            },
        )
        forget_checkpoint(layout, stage)
    return _summarise(layout, manifest, is_up_to_date=False)


def _summarise(layout: RunLayout, manifest: Manifest, *, is_up_to_date: bool) -> Trained:
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
        members=manifest.result.get("members", ALONE.weights),  # none in a warm start of an earlier version
    )


# Reading: the prepared rows, and the weights of the warm start.


def _read_model(layout: RunLayout, config: TrainingSettings, rows: "TrainingRows") -> "tuple[Networks, dict[str, Any]]":
    """Networks and weights before the first round: new ones for `warmstart`, the warm start's for `refine`."""
    import tensorflow as tf

    from bayesnde_cli.model.coders import Networks
    from bayesnde_cli.training.recipes import first_weights, fresh_networks

    if not isinstance(config, WarmstartSettings):
        stored = read_networks(layout, "warmstart")
        weights = {name: tf.constant(array) for name, array in stored.weights.items()}
        return Networks(stored.decoder, stored.encoder), weights
    image = read_schema(layout).image
    networks = fresh_networks(config, rows.first.x.shape[1], rows.first.n_classes, image)
    if config.cells and image is None:
        networks = replace(networks, decoder=replace(networks.decoder, cells=rows.cells()))
    if config.cells and image is not None:
        networks = replace(networks, decoder=replace(networks.decoder, levels=N_LEVELS))
    return networks, first_weights(config, networks)


# Computing.


class _Fitted(NamedTuple):
    """A trained model."""

    settings: TrainingSettings  # as they were used, with all defaults filled in
    networks: "Networks"
    weights: dict[str, np.ndarray]
    progress: "Progress"
    chosen: int  # index of the selected validation check
    rows: Rows  # of training
    stack: Stack
    member_settings: Mapping[str, Any]
    tried: list[dict[str, Any]]  # recipes


def _fit(
    layout: RunLayout,
    config: TrainingSettings,
    checkpoints: "Checkpoints",
    report: Report,
    refine: RefineSettings | None,
) -> _Fitted:
    """Train the phases of the stage, from its checkpoint if there is one, and select the best weights."""
    import tensorflow as tf

    from bayesnde_cli.training import recipes
    from bayesnde_cli.training import selection as selection_module
    from bayesnde_cli.training.loop import Training
    from bayesnde_cli.training.training_rows import TrainingRows

    assert config.seed is not None
    seed = derive_seed(config.seed, config.stage)
    are_images = read_schema(layout).image is not None
    is_whole = are_images or config.needs_all_rows
    rows = TrainingRows(layout, seed, fresh_noise=config.fresh_noise, is_whole=is_whole)
    train, validation = rows.first, read_split(layout, "validation", with_values=rows.first.values is not None)
    if rows.n_windows > 1:
        report.note(f"the table is large: an epoch sees {rows.n_epoch_rows:,} of its rows, the next one others")
    tried: list[dict[str, Any]] = []
    if isinstance(config, WarmstartSettings):
        config, tried = _choose_recipe(layout, config, checkpoints, rows, validation, report, refine)
    config = config.with_defaults(rows.n_rows, are_images=are_images, n_classes=train.n_classes)
    networks, weights = _read_model(layout, config, rows)
    check = selection_module.ValidationCheck(config, networks, validation)
    training = Training(
        config,
        recipes.phases_of(config, networks, train, rows.n_epoch_rows),
        rows_of=rows.epoch,
        check=check,
        seed=tf.constant(seed % 2**31, tf.int32),
    )
    progress = training.run(weights, checkpoints, report)
    chosen = selection_module.best_check(progress.checks, config.select)
    best, stack = checkpoints.weights(chosen), ALONE
    member_settings: Mapping[str, Any] = {}
    if isinstance(config, RefineSettings) and config.members == "auto" and networks.decoder.image is None:
        from bayesnde_cli.training.members import fit_stack

        report.note("fitting the other members: a Gaussian mixture and a kernel density")
        some, log_density = check.log_density({name: tf.constant(array) for name, array in best.items()})
        stack, member_settings = fit_stack(train, some, log_density, derive_seed(seed, "members"))
    return _Fitted(config, networks, best, progress, chosen, train, stack, member_settings, tried)


def _choose_recipe(
    layout: RunLayout,
    config: WarmstartSettings,
    checkpoints: "Checkpoints",
    rows: "TrainingRows",
    validation: Rows,
    report: Report,
    refine: RefineSettings | None,
) -> tuple[WarmstartSettings, list[dict[str, Any]]]:
    """The settings with the recipe that held-out rows choose, and the rows of the table of recipes that were tried."""
    from bayesnde_cli.training import search
    from bayesnde_cli.training.forecast import forecast, measure_speed

    are_images, n_rows = read_schema(layout).image is not None, rows.n_rows
    facts: dict[str, Any] = {"are_images": are_images, "n_classes": rows.first.n_classes}
    settings = config.candidates(n_rows, are_images=are_images)
    held = search.hold_out(rows.first, validation, derive_seed(rows.seed, "recipe")) if len(settings) > 1 else None
    what = "the warm start" if refine is None else "the warm start and the refinement"

    def candidate(name: str, own: WarmstartSettings) -> "Candidate":
        complete = own.with_defaults(n_rows, **facts)
        return search.Candidate(name, complete, *_read_model(layout, complete, rows))

    if held is None or held.n_rows < search.LEAST_ROWS:
        if config.minutes is None:
            expected = _forecast(candidate(config.recipe, config), rows, refine, facts, measure_speed())
            report.note(f"expected time: {what}, {expected}")
        return config, []

    def try_recipes(once: "Once") -> list[dict[str, Any]]:
        """The figures of the recipes; none if there is no time to try them."""
        speed, trial_rows = measure_speed(), rows.part(held.trained)
        tried = [candidate(name, own) for name, own in settings.items()]
        trials = search.trials(tried, trial_rows)
        time = forecast([phase for own in trials.values() for phases in own for phase in phases], speed)
        if config.minutes is None:
            longest = max((_forecast(own, rows, refine, facts, speed) for own in tried), key=lambda own: own.longest)
            report.note(f"expected time: {len(tried)} recipes are tried, {time}; {what} of the largest, {longest}")
        elif time.usual > 60.0 * config.minutes * stage_settings.SEARCH_TIME:
            report.note(f"no recipes are tried: that would take {time}, and this stage has {config.minutes:g} minutes")
            return []
        return search.choose(tried, trials, trial_rows, held.rows, report, once)

    records, seconds = checkpoints.choose_once(try_recipes)
    if not records:
        return config, []
    chosen = settings[search.chosen_recipe(records)]
    report.note(f"recipe {search.chosen_recipe(records)} chosen of {', '.join(settings)}")
    if chosen.minutes is not None:
        chosen = chosen.model_copy(update={"minutes": max(chosen.minutes - seconds / 60.0, 0.1)})
    return chosen, records


def _forecast(
    candidate: "Candidate", rows: "TrainingRows", refine: RefineSettings | None, facts: dict[str, Any], speed: float
) -> "Forecast":
    """The time of a whole warm start of a candidate, and of the refinement that follows it."""
    from bayesnde_cli.training.forecast import forecast
    from bayesnde_cli.training.recipes import phases_of

    stages: list[TrainingSettings] = [candidate.settings]
    if refine is not None:
        own = {"seed": candidate.settings.seed, "weight_decay": candidate.settings.weight_decay}
        stages.append(refine.fill_in(own).with_defaults(rows.n_rows, **facts))
    times = [forecast(phases_of(own, candidate.networks, rows.first, rows.n_epoch_rows), speed) for own in stages]
    return times[0] if refine is None else times[0] + times[1]


# Writing: the selected weights, the history, the validation checks, and the latents.


def _write(folder: Path, layout: RunLayout, fitted: _Fitted, *, run_id: str) -> list[str]:
    """Write the outputs of a stage into a folder, and return their names in it."""
    from bayesnde_cli.training.selection import rank_checks

    stage, checks = fitted.settings.stage, fitted.progress.checks
    selection = [
        {**check, "rank": rank, "is_chosen": index == fitted.chosen}
        for index, (check, rank) in enumerate(zip(checks, rank_checks(checks), strict=True))
    ]
    tables = {
        layout.history_file(stage).name: ("history", _table(fitted.progress.history)),
        layout.selection_file(stage).name: ("selection", _table(selection)),
    }
    if stage == "refine":
        tables[LATENTS] = ("latents", _latents(fitted))
    if fitted.tried:
        tables[layout.recipe_file().name] = ("recipe", pa.Table.from_pylist(fitted.tried))
    for name, (schema_name, table) in tables.items():
        write_table(folder / name, table, Stamp(schema_name, run_id))
    networks = StoredNetworks(fitted.networks.decoder, fitted.networks.encoder, fitted.weights, fitted.stack)
    write_networks(folder / WEIGHTS, networks, run_id)
    return [*tables, WEIGHTS]


def _table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows with the columns of all of them, as phases have different terms; their order does not depend on resuming."""
    first = ("phase", "round", "epoch", "step", "is_chosen", "marginal", "marginal_se", "plug_in", "rank", "loss")
    found = {name for row in rows for name in row}
    names = [*(name for name in first if name in found), *sorted(found.difference(first))]
    table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    # A column without any value is a column of numbers, too.
    fields = [item.with_type(pa.float64()) if item.type == pa.null() else item for item in table.schema]
    return table.cast(pa.schema(fields))


def _latents(fitted: _Fitted) -> pa.Table:
    """The encoder's proposal for the training rows that are kept in memory: start points of chains."""
    import tensorflow as tf

    from bayesnde_cli.model.coders import encoder_of
    from bayesnde_cli.training.training_rows import as_tensors

    weights = {name: tf.constant(array) for name, array in fitted.weights.items()}
    encoder = encoder_of(fitted.networks.encoder, weights)
    x, y = as_tensors(fitted.rows)
    pieces = [slice(start, start + _ENCODER_ROWS) for start in range(0, len(fitted.rows), _ENCODER_ROWS)]
    parts = [encoder(x[piece], None if y is None else y[piece]) for piece in pieces]
    mean, sd = (tf.concat([getattr(part, name) for part in parts], axis=0).numpy() for name in ("mean", "sd"))
    lists = [pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1]) for values in (mean, sd)]
    return pa.table({"row_id": fitted.rows.row_ids, "z_mean": lists[0], "z_sd": lists[1]})
