"""`posterior` and `density`: rows are scored in blocks that any number of processes can share."""

from collections.abc import Sequence

from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts import plan as plans
from bayesnde_cli.artifacts import shards
from bayesnde_cli.artifacts.atomic import sweep
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.manifest import Manifest
from bayesnde_cli.artifacts.plan import Plan, blocks_done, create_or_join, missing_blocks
from bayesnde_cli.artifacts.row_ranges import column_names
from bayesnde_cli.artifacts.shards import ArrayTask, Shard
from bayesnde_cli.artifacts.tables import Stamp
from bayesnde_cli.config import DensityConfig, PosteriorConfig
from bayesnde_cli.data.roles import match_columns
from bayesnde_cli.stages.outputs import no_empty_folders
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.scoring.combining import combined
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION
from bayesnde_cli.stages.scoring.engine import EngineFactory, LazyEngine, open_engine
from bayesnde_cli.stages.scoring.job import Asked, Job, is_up_to_date, make_job
from bayesnde_cli.stages.scoring.outcomes import Drawn, Scored, ShardDone
from bayesnde_cli.stages.scoring.rows import SetRows, open_rows
from bayesnde_cli.stages.scoring.sharing import share
from bayesnde_cli.stages.scoring.work import DensityWork, PosteriorWork, Work

__all__ = ["Asked", "Drawn", "Scored", "ShardDone", "open_engine", "run_density", "run_posterior"]


def run_posterior(
    layout: RunLayout, asked: Asked, config: PosteriorConfig, report: Report, *, factory: EngineFactory = open_engine
) -> Drawn | ShardDone:
    """Draw from the latent posterior of every row."""
    job = make_job(layout, asked, config)
    with no_empty_folders(job.folder):
        if is_up_to_date(job, is_restart=asked.is_restart):
            return _drawn(job, manifests.read(layout.manifest_file(job.stage, job.set_name)), is_up_to_date=True)
        rows = open_rows(job, report)
        plan = _joined(job, rows)
        work = PosteriorWork(job, plan, rows, LazyEngine(layout, job.config, factory))
        if asked.shard is not None:
            return _shard(work, asked.shard, report)
        share(layout, plan, range(plan.n_blocks), work.compute, report)
        return _drawn(job, combined(work), is_up_to_date=False)


def run_density(
    layout: RunLayout, asked: Asked, config: DensityConfig, report: Report,
    *, columns: Sequence[str] = (), factory: EngineFactory = open_engine,
) -> Scored | ShardDone:  # fmt: skip
    """Score every row; `columns`, all if none, are checked before the long work and handed back."""
    job = make_job(layout, asked, config)
    with no_empty_folders(job.folder):
        if is_up_to_date(job, is_restart=asked.is_restart):
            found = manifests.read(layout.manifest_file(job.stage, job.set_name))
            return _scored(job, found, report, _chosen(columns, _columns_of(job)), is_up_to_date=True)
        work = _density_work(job, open_rows(job, report), config, report, factory)
        chosen = _chosen(columns, work.columns.names)
        if asked.shard is not None:
            return _shard(work, asked.shard, report)
        share(layout, work.plan, range(work.plan.n_blocks), work.compute, report)
        manifest = combined(work)
        if work.is_keeping_draws and not missing_blocks(layout, work.posterior.plan):
            combined(work.posterior)
        return _scored(job, manifest, report, chosen, is_up_to_date=False)


def _joined(job: Job, rows: SetRows) -> Plan:
    """The plan of a job, made or joined; what killed processes left in its folder goes."""
    sweep(job.folder)
    return create_or_join(job.layout, job.plan(rows.n_rows))


def _density_work(
    job: Job, rows: SetRows, config: DensityConfig, report: Report, factory: EngineFactory
) -> DensityWork:
    engine = LazyEngine(job.layout, job.config, factory)
    of_draws = job.of_draws()
    plan = of_draws.plan(rows.n_rows)
    path = job.layout.plan_file(plan.stage, plan.set_name)
    if config.keep_draws:
        create_or_join(job.layout, plan)
    is_same = path.exists() and plans.read(path) == plan
    if path.exists() and not is_same:
        report.note(f"{job.layout.label(plan.stage, plan.set_name)} was made with other settings and is not used")
    return DensityWork(
        job, _joined(job, rows), rows, engine, PosteriorWork(of_draws, plan, rows, engine),
        is_reading_draws=is_same, is_keeping_draws=config.keep_draws,
    )  # fmt: skip


def _shard(work: Work, asked: Shard | ArrayTask, report: Report) -> ShardDone:
    """Compute the blocks of one shard."""
    layout, plan = work.job.layout, work.plan
    shard = shards.freeze(layout, plan.stage, plan.set_name, asked)
    blocks = shards.blocks_of(shard, plan.n_blocks)
    share(layout, plan, blocks, work.compute, report)
    return ShardDone(
        folder=str(work.job.folder),
        set_name=plan.set_name,
        shard=str(shard),
        n_shard_blocks=len(blocks),
        blocks_done=len(blocks_done(layout, plan)),
        n_blocks=plan.n_blocks,
        next_command=layout.command(plan.stage, plan.set_name),
    )


def _chosen(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns that the user wants, in the order in which he named them."""
    pieces = [piece.strip() for item in wanted for piece in item.split(",")]
    found = [name for piece in pieces for name in match_columns([piece], names, option="--columns")]
    return list(dict.fromkeys(found)) or list(names)


def _columns_of(job: Job) -> list[str]:
    return column_names(job.layout.density_file(job.set_name), Stamp(DENSITY_SCHEMA, DENSITY_VERSION, job.run_id))


def _drawn(job: Job, manifest: Manifest, *, is_up_to_date: bool) -> Drawn:
    return Drawn(
        folder=str(job.folder),
        set_name=job.set_name,
        is_up_to_date=is_up_to_date,
        n_chains=job.config.chains,
        n_draws=job.config.draws,
        **manifest.result,
    )


def _scored(job: Job, manifest: Manifest, report: Report, columns: list[str], *, is_up_to_date: bool) -> Scored:
    scored = Scored(
        file=str(job.layout.density_file(job.set_name)),
        set_name=job.set_name,
        is_up_to_date=is_up_to_date,
        columns=columns,
        **manifest.result,
    )
    verdicts = [[name, f"{count:,}", f"{100 * count / scored.n_rows:.1f}%"] for name, count in scored.verdicts.items()]
    report.table("verdicts", ["verdict", "rows", "share"], verdicts)
    return scored
