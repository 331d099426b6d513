"""`posterior` and `density`: rows are scored in blocks that any number of processes can share."""

from collections.abc import Sequence
from typing import NamedTuple

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
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.stages.outputs import no_empty_folders, tidy
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.scoring.combining import combined
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION, density_columns
from bayesnde_cli.stages.scoring.engine import EngineFactory, LazyEngine, open_engine
from bayesnde_cli.stages.scoring.export import export_draws, require_writer
from bayesnde_cli.stages.scoring.job import Asked, Job, is_up_to_date, make_job, refuse_earlier
from bayesnde_cli.stages.scoring.outcomes import CHAIN_RESULT, DENSITY_RESULT, Drawn, Scored, ShardDone
from bayesnde_cli.stages.scoring.rows import SetRows, open_rows
from bayesnde_cli.stages.scoring.sharing import share
from bayesnde_cli.stages.scoring.versions import warn_of_other_versions
from bayesnde_cli.stages.scoring.work import DensityWork, PosteriorWork, Work

__all__ = [
    "Asked", "Drawn", "Planned", "Scored", "ShardDone", "open_engine", "planned", "run_density", "run_posterior",
    "score",
]  # fmt: skip


def run_posterior(
    layout: RunLayout, asked: Asked, config: PosteriorConfig, report: Report, *, factory: EngineFactory = open_engine
) -> Drawn | ShardDone:
    """Draw from the latent posterior of every row."""
    if asked.is_exporting:
        require_writer()
    job = make_job(layout, asked, config)
    with no_empty_folders(job.folder):
        if is_up_to_date(job, is_restart=asked.is_restart):
            tidy(layout, job.stage, job.set_name)
            return _drawn(job, asked, report, is_up_to_date=True)
        rows = open_rows(job, report)
        plan = _joined(job, rows, report)
        work = PosteriorWork(job, plan, rows, LazyEngine(job, factory), report)
        shard = _frozen(layout, plan, asked.shard)
        _share(work, shard)
        if shard is not None:
            return _shard_done(work, shard)
        combined(work)
        return _drawn(job, asked, report, is_up_to_date=False)


def run_density(
    layout: RunLayout, asked: Asked, config: DensityConfig, report: Report,
    *, columns: Sequence[str] = (), factory: EngineFactory = open_engine,
) -> Scored | ShardDone:  # fmt: skip
    """Score every row; `columns`, all if none, are checked before the long work and handed back."""
    return score(make_job(layout, asked, config), asked, report, columns=columns, factory=factory)


def score(
    job: Job, asked: Asked, report: Report, *, columns: Sequence[str] = (), factory: EngineFactory = open_engine
) -> Scored | ShardDone:
    """Score every row of a job."""
    layout, config = job.layout, job.config
    assert isinstance(config, DensityConfig)
    with no_empty_folders(job.folder):
        is_done = is_up_to_date(job, is_restart=asked.is_restart)
        if is_done:
            tidy(layout, job.stage, job.set_name)
        if is_done and not config.keep_draws:
            return _scored(job, report, _chosen_of_table(job, columns), is_up_to_date=True)
        if is_done and (path := layout.plan_file(job.stage, job.set_name)).exists():
            refuse_earlier(job, plans.read(path))  # its draws may have been others
        rows = open_rows(job, report)
        chosen = _chosen(columns, density_columns(rows.label_fields).names)
        plan = _joined(job, rows, report)
        shard = _frozen(layout, plan, asked.shard)
        engine = LazyEngine(job, factory)
        draws = PosteriorWork(job.of_draws(), job.of_draws().plan(rows.n_rows), rows, engine, report)
        if config.keep_draws:
            _keep(draws, shard)
        if is_done:
            return _scored(job, report, chosen, is_up_to_date=True)
        is_reading_draws = draws.store.is_of_plan(report)
        work = DensityWork(job, plan, rows, engine, report, draws, is_reading_draws)
        _share(work, shard)
        if shard is not None:
            return _shard_done(work, shard)
        combined(work)
        return _scored(job, report, chosen, is_up_to_date=False)


class Planned(NamedTuple):
    """The rows of a data set that is still to be scored, and its plan."""

    rows: SetRows
    plan: Plan


def planned(job: Job, report: Report, *, is_restart: bool) -> Planned | None:
    """The rows of a job as `density` would begin it, put down with their plan for others to compute; None if done."""
    with no_empty_folders(job.folder):
        if is_up_to_date(job, is_restart=is_restart):
            return None
        rows = open_rows(job, report)
        return Planned(rows, _joined(job, rows, report))


def _keep(draws: PosteriorWork, shard: Shard | None) -> None:
    """Make the draws as `posterior` does, before they are used; its stage is complete afterwards, or the shard's part.

    Never at the cost of draws of other settings: `SettingsDiffer` if such are there.
    """
    if is_up_to_date(draws.job, is_restart=False):
        tidy(draws.job.layout, draws.job.stage, draws.job.set_name)
        return
    _joined(draws.job, draws.rows, draws.report)
    _share(draws, shard)
    if shard is None:
        combined(draws)


def _joined(job: Job, rows: SetRows, report: Report) -> Plan:
    """The plan of a job, made or joined; what killed processes left in its folder, and beside it, goes."""
    sweep(job.folder)
    sweep(job.folder.parent)  # a folder that `discard` put aside
    plan = create_or_join(job.layout, job.plan(rows.n_rows))
    if missing_blocks(job.layout, plan):
        warn_of_other_versions(job.layout, plan, report)
    return plan


def _frozen(layout: RunLayout, plan: Plan, asked: Shard | ArrayTask | None) -> Shard | None:
    """The shard that was asked for; None: all blocks."""
    return None if asked is None else shards.freeze(layout, plan.stage, plan.set_name, asked)


def _share(work: Work, shard: Shard | None) -> None:
    """Have the blocks of a shard, or all, computed."""
    share(work.job.layout, work.plan, _blocks(work.plan, shard), work.compute, work.report)


def _blocks(plan: Plan, shard: Shard | None) -> range:
    return range(plan.n_blocks) if shard is None else shards.blocks_of(shard, plan.n_blocks)


def _shard_done(work: Work, shard: Shard) -> ShardDone:
    layout, plan = work.job.layout, work.plan
    return ShardDone(
        folder=str(work.job.folder),
        set_name=plan.set_name,
        shard=str(shard),
        n_shard_blocks=len(_blocks(plan, shard)),
        blocks_done=len(blocks_done(layout, plan)),
        n_blocks=plan.n_blocks,
        next_command=layout.command(plan.stage, plan.set_name),
    )


def _chosen(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns that the user wants, in the order in which he named them."""
    found = [name for piece in _pieces(wanted) for name in match_columns([piece], names, option="--columns")]
    return list(dict.fromkeys(found)) or list(names)


def _chosen_of_table(job: Job, wanted: Sequence[str]) -> list[str]:
    """The same of a table that is there, which an earlier bayesnde may have made with fewer columns."""
    names = column_names(job.layout.density_file(job.set_name), Stamp(DENSITY_SCHEMA, DENSITY_VERSION, job.run_id))
    lacking = [name for name in density_columns([]).names if name not in names]
    for name in _pieces(wanted):
        if name in lacking:
            label = job.layout.label(job.stage, job.set_name)
            raise BadUsage(
                f"--columns: {label} has no column '{name}'",
                found=f"{label} was made by an earlier bayesnde, whose tables had none",
                hint=f"run `{job.layout.command(job.stage, job.set_name, '--restart')}` with the same options to make "
                "it again, or leave the column out",
            )
    return _chosen(wanted, names)


def _pieces(wanted: Sequence[str]) -> list[str]:
    return [piece.strip() for item in wanted for piece in item.split(",")]


def _manifest(job: Job) -> Manifest:
    return manifests.read(job.layout.manifest_file(job.stage, job.set_name))


def _drawn(job: Job, asked: Asked, report: Report, *, is_up_to_date: bool) -> Drawn:
    return Drawn(
        export=str(export_draws(job, report)) if asked.is_exporting else None,
        folder=str(job.folder),
        set_name=job.set_name,
        is_up_to_date=is_up_to_date,
        n_chains=job.config.chains,
        n_draws=job.config.draws,
        **manifests.result_of(job.layout, _manifest(job), CHAIN_RESULT),
    )


def _scored(job: Job, report: Report, columns: list[str], *, is_up_to_date: bool) -> Scored:
    scored = Scored(
        file=str(job.layout.density_file(job.set_name)),
        set_name=job.set_name,
        is_up_to_date=is_up_to_date,
        columns=columns,
        **manifests.result_of(job.layout, _manifest(job), DENSITY_RESULT),
    )
    verdicts = [
        [name, f"{count:,}", f"{100 * count / max(scored.n_rows, 1):.1f}%"] for name, count in scored.verdicts.items()
    ]
    report.table("verdicts", ["verdict", "rows", "share"], verdicts)
    return scored
