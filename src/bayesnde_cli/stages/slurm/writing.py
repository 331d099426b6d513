"""The scripts of an array on disk, with what `status` wants to know of it."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bayesnde_cli.artifacts import array_record, shards
from bayesnde_cli.artifacts.array_record import ArrayRecord
from bayesnde_cli.artifacts.atomic import cannot_write, write_bytes
from bayesnde_cli.artifacts.fingerprint import sha256_json
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.artifacts.shards import Shard
from bayesnde_cli.config import DensityConfig
from bayesnde_cli.report.options import options
from bayesnde_cli.stages.reporting import Report, counted
from bayesnde_cli.stages.slurm.requests import Request, Setup
from bayesnde_cli.stages.slurm.scripts import ArrayJob


def divided(layout: RunLayout, plan: Plan, request: Request, report: Report, *, is_count_chosen: bool) -> Request:
    """The request with a number of shards that the set can have; `BadUsage` if it is divided otherwise already."""
    frozen = shards.frozen_count(layout, plan.stage, plan.set_name)
    count = request.shards if is_count_chosen or frozen is None else frozen
    if frozen is None and count > plan.n_blocks:
        if is_count_chosen:
            report.note(f"{counted(plan.n_blocks, 'block')} of {plan.block_rows} rows make no more shards than that")
        count = plan.n_blocks
    shards.freeze(layout, plan.stage, plan.set_name, Shard(1, count))
    return replace(request, shards=count)


def array_job(
    layout: RunLayout, plan: Plan, config: DensityConfig, request: Request, setup: Setup | None, data: Sequence[Path]
) -> ArrayJob:
    """The jobs that carry out a plan."""
    run, set_name = os.path.abspath(layout.root), plan.set_name
    # By their name jobs are found in the queue: those of another division, or of other settings, must not be.
    digest = sha256_json([run, request.shards, plan.plan_hash])[:8]
    defaults = DensityConfig().as_dict()
    chosen = {name: value for name, value in config.as_dict().items() if value != defaults[name] and name != "threads"}
    if request.gpus_per_task and config.device == defaults["device"]:
        chosen["device"] = "gpu"  # who asks for one does not want to find out later that it was not used
    return ArrayJob(
        layout=RunLayout(Path(run)),
        set_name=set_name,
        record=ArrayRecord(f"bayesnde-{set_name}-{digest}", request.shards, run, request.array_limit),
        request=request,
        setup=setup,
        # -P: the folder where a job starts is no place to import from.
        program=(sys.executable, "-P", "-m", "bayesnde_cli"),
        data=[os.path.abspath(path) for path in data],
        options=options(chosen),
        threads=config.threads,
        is_keeping_draws=config.keep_draws,
        folder=os.getcwd(),
    )


def write_scripts(array: ArrayJob) -> None:
    """Put both scripts and the record in place, over those of an earlier array."""
    layout, set_name = array.layout, array.set_name
    texts = {layout.array_script(set_name): array.array_text, layout.gather_script(set_name): array.gather_text}
    logs = layout.job_log(set_name, "").parent
    with cannot_write(logs):
        logs.mkdir(parents=True, exist_ok=True)  # SLURM does not make it, and a job without a log fails
    for path, text in texts.items():
        write_bytes(path, text.encode("utf-8", "surrogateescape"))
    array_record.write(layout, set_name, array.record)
