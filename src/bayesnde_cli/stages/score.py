"""`density`: the log-density of every row of a data set, in blocks that any number of processes can share.

job -> rows -> blocks -> one table and its manifest

`Work`, `share` and `combine` serve `posterior` as well.
"""

import math
import operator
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadArtifact, MissingArtifact, StageBusy
from bayesnde_cli.formatting import Advance, Report, counted
from bayesnde_cli.inference.bridge import BRIDGE, NO_CELLS
from bayesnde_cli.inference.diagnostics import Draws
from bayesnde_cli.rng import bits_at, derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs import blocks, files
from bayesnde_cli.runs.blocks import Plan, Shard
from bayesnde_cli.runs.files import holder, holding, sweep
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import Manifest, Workplace, is_stage_done, no_empty_folders, workplace
from bayesnde_cli.runs.parquet_files import Stamp, column_names, made_with, write_table
from bayesnde_cli.settings.stage_settings import DensitySettings
from bayesnde_cli.stages import loading
from bayesnde_cli.stages.loading import EngineFactory, LazyEngine
from bayesnde_cli.stages.scoring_job import (
    Asked,
    Job,
    SetRows,
    holder_of,
    is_up_to_date,
    make_job,
    open_rows,
    wait_turns,
)
from bayesnde_cli.tables.columns import match_columns

if TYPE_CHECKING:
    from bayesnde_cli.stages.posterior_draws import DrawStore


def run_density(
    layout: RunLayout,
    asked: Asked,
    config: DensitySettings,
    report: Report,
    *,
    columns: Sequence[str] = (),
    factory: EngineFactory | None = None,
) -> "DensityResult | ShardResult":
    """Score every row. The names of `columns` are checked before the long work; without names all are selected."""
    return score(make_job(layout, asked, config), asked, report, columns=columns, factory=factory)


def score(
    job: Job, asked: Asked, report: Report, *, columns: Sequence[str] = (), factory: EngineFactory | None = None
) -> "DensityResult | ShardResult":
    """Score every row of a job."""
    config = job.config
    assert isinstance(config, DensitySettings)
    with no_empty_folders(job.folder):
        is_done = is_up_to_date(job, is_restart=asked.is_restart)
        if is_done and not config.keep_draws:
            names = column_names(job.layout.density_file(job.set_name), Stamp(DENSITY_SCHEMA, job.run_id))
            return _density_result(job, report, _select(columns, names), is_up_to_date=True)
        rows = open_rows(job, report)
        selected = _select(columns, density_columns(rows.label_fields).names)
        opened = LazyEngine(job.layout, config, factory or loading.open_engine)
        work = DensityWork(job, start_plan(job, rows), rows, opened, report)
        shard = work.freeze(asked)
        if config.keep_draws:
            from bayesnde_cli.stages.posterior_draws import keep_draws

            keep_draws(work, shard)
        if not is_done:
            work.find_draws()
            if part := work.run(shard):
                return part
        return _density_result(job, report, selected, is_up_to_date=is_done)


def create_plan(job: Job, report: Report, *, is_restart: bool) -> Plan | None:
    """The plan of a job, with its rows stored for other processes to compute; None if the job is done."""
    with no_empty_folders(job.folder):
        return None if is_up_to_date(job, is_restart=is_restart) else start_plan(job, open_rows(job, report))


def start_plan(job: Job, rows: SetRows) -> Plan:
    """The plan of a job, created or joined; temporary files that killed processes left are removed."""
    sweep(job.folder)
    sweep(job.folder.parent)  # a folder that `discard` renamed
    return blocks.create_or_join(job.layout, job.plan(rows.n_rows))


# The blocks of a stage


@dataclass
class Work(ABC):
    """The blocks of one stage and data set, and their combination."""

    job: Job
    plan: Plan
    rows: SetRows
    opened: LazyEngine
    report: Report
    schema_name: ClassVar[str]  # of the combined table

    @property
    @abstractmethod
    def file(self) -> Path:
        """The combined table."""

    @abstractmethod
    def compute(self, block: int, advance: Advance) -> None:
        """Compute and publish a block; `advance` may hear of rows before the block is done."""

    @abstractmethod
    def tables(self) -> Iterator[pa.Table]:
        """The tables of all blocks, in order."""

    @abstractmethod
    def figures(self, table: pa.Table) -> dict[str, Any]:
        """The figures of one block that `summarise` adds up."""

    @abstractmethod
    def summarise(self, figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The figures of the manifest, from those of all blocks."""

    def draw(self, block: int, rows: Rows) -> Draws:
        """The draws of a block. The set has no influence on the seed: equal rows give equal bits in any file."""
        seed = derive_seed(self.plan.seed, "posterior", block)
        return self.opened.engine.sample(rows.pad(self.plan.block_rows), seed)

    def freeze(self, asked: Asked) -> Shard | None:
        """The shard of this process; None: all blocks."""
        if asked.shard is None:
            return None
        return blocks.freeze(self.job.layout, self.job.stage, self.job.set_name, asked.shard)

    def run(self, shard: Shard | None) -> "ShardResult | None":
        """Have all blocks computed and combined, or the blocks of a shard computed."""
        layout, plan = self.job.layout, self.plan
        wanted = shard.blocks(plan.n_blocks) if shard else range(plan.n_blocks)
        share(layout, plan, wanted, self.compute, self.report)
        if shard is None:
            combine(self)
            return None
        return ShardResult(
            folder=str(self.job.folder),
            set_name=plan.set_name,
            shard=str(shard),
            n_shard_blocks=len(wanted),
            blocks_done=len(blocks.blocks_done(layout, plan)),
            n_blocks=plan.n_blocks,
            next_command=layout.command(plan.stage, plan.set_name),
        )


def share(
    layout: RunLayout, plan: Plan, wanted: Iterable[int], compute: Callable[[int, Advance], None], report: Report
) -> None:
    """Have blocks published: compute those that are missing, and wait for those that other processes have claimed.

    The claims of dead processes are taken over. If another process restarts the stage, this one ends with
    `SettingsDiffer` or `MissingArtifact`: blocks of two plans never come together.
    """
    wanted, done = list(wanted), blocks.blocks_done(layout, plan)
    waiting = [block for block in wanted if block not in done]
    sizes = {block: -operator.sub(*plan.rows(block)) for block in wanted}
    with report.progress(plan.stage, sum(sizes.values()), "rows") as advance:
        advance(sum(sizes.values()) - sum(sizes[block] for block in waiting))
        for _ in wait_turns(report, lambda: f"{counted(len(waiting), 'block')} of other processes"):
            claimed = []
            for block in waiting:
                stopping.check()
                rows = _RowCount(advance)
                if _publish(layout, plan, block, compute, rows.add):
                    advance(sizes[block] - rows.count)
                else:
                    claimed.append(block)
            waiting[:] = claimed
            if not waiting:
                return


@dataclass
class _RowCount:
    """Rows of a block that have been reported."""

    advance: Advance
    count: int = 0

    def add(self, n: int) -> None:
        self.count += n
        self.advance(n)


def _publish(
    layout: RunLayout, plan: Plan, block: int, compute: Callable[[int, Advance], None], advance: Advance
) -> bool:
    """Whether a block is published: it was, or nobody else had claimed it and it is computed now."""
    path = layout.block_file(plan.stage, plan.set_name, block)
    if path.exists():
        return True
    with holding(layout.claim_file(plan.stage, plan.set_name, block)) as ours:
        remover = holder(layout.claim_file(plan.stage, plan.set_name))
        if ours is None or (remover is not None and remover.is_alive):
            return False
        blocks.join(layout, plan)  # the stage may have been removed or restarted since the last block
        if not path.exists():
            compute(block, advance)
    return True


def combine(work: Work) -> None:
    """Write all blocks to one table, and the manifest; if another process does so, wait for it."""
    job = work.job
    for _ in wait_turns(work.report, lambda: holder_of(job)):
        try:
            with workplace(job.layout, job.stage, job.set_name, started=job.started) as place:
                if not is_stage_done(job.layout, job.stage, job.identity, job.set_name):
                    _write_combined(work, place)
                return
        except StageBusy:
            continue


def _write_combined(work: Work, place: Workplace) -> None:
    job, figures, versions = work.job, [], Counter[str]()

    def batches() -> Iterator[pa.RecordBatch]:
        for table in work.tables():
            stopping.check()
            figures.append(work.figures(table))
            versions[made_with(table)] += 1
            yield from table.to_batches()

    stamp = Stamp(work.schema_name, work.plan.run_id, work.plan.plan_hash)
    write_table(place.folder / work.file.name, batches(), stamp)
    place.finish(
        [work.file.name],
        job.config,
        seed=job.seed,
        identity=job.identity,
        inputs=job.inputs,
        run_id=job.run_id,
        device=work.opened.device,
        result={**work.summarise(figures), "made_with": dict(versions)},
    )
    if len(versions) > 1:
        parts = "; ".join(f"{counted(count, 'block')} with {made}" for made, count in versions.items())
        work.report.warn(f"{job.label} was made with different versions: {parts}")


@dataclass(frozen=True)
class ShardResult:
    """The result of one shard: its blocks are done."""

    folder: str
    set_name: str
    shard: str
    n_shard_blocks: int
    blocks_done: int
    n_blocks: int
    next_command: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        text = (
            f"{self.folder}: shard {self.shard} done, {counted(self.n_shard_blocks, 'block')}; "
            f"{self.blocks_done:,} of {counted(self.n_blocks, 'block')} there"
        )
        return text if self.blocks_done < self.n_blocks else f"{text}, combine with `{self.next_command}`"


# Densities

DENSITY_SCHEMA = "density"
# Estimates of the engine, in the order of the table. Those of chains are null for a row that needed none.
_FIGURES = {
    "log_density_scaled": pa.float64(),
    "mc_se": pa.float64(),
    "method": pa.string(),
    "pareto_k": pa.float64(),
    "log_density_is": pa.float64(),
    "mc_se_is": pa.float64(),
    "overlap": pa.float64(),
    "ess_min": pa.float64(),
    "rhat_max": pa.float64(),
    "missed_mass": pa.float64(),
    "acceptance": pa.float64(),
    "divergences": pa.int32(),
    "bridge_iterations": pa.int32(),
    "converged": pa.bool_(),
    "reliable": pa.bool_(),
    "verdict": pa.string(),
}
_OF_CHAINS = frozenset(_FIGURES) - {
    "log_density_scaled",
    "mc_se",
    "method",
    "pareto_k",
    "missed_mass",
    "reliable",
    "verdict",
}
_AUDIT = {"audit_log_density": pa.float64(), "audit_mc_se": pa.float64()}
_SPENT = {"n_gradients": pa.int64(), "n_likelihoods": pa.int64()}
# The audit bridges rows that were scored without a bridge: at least 16 and at most 200, but at most one row in ten,
# so that two rows have no audit.
_LEAST_AUDITED, _MOST_AUDITED, _ROWS_PER_AUDIT = 16, 200, 10
# It fails if so few intervals of 95 % cover with less than this probability, or if a row is off by this many nats
# beyond five standard errors.
_AUDIT_CHANCE, _MOST_OFF = 1e-3, 0.3
# A row without cells has the density 1: the integral of the prior.
_OF_NO_CELLS = {
    **dict.fromkeys(("log_density_scaled", "mc_se", "log_density_is", "mc_se_is"), 0.0),
    **dict.fromkeys(("converged", "reliable"), True),
    "verdict": NO_CELLS,
}
_COUNTS = ("n_rows", "n_reliable", "n_not_finite", "n_incomplete")


def density_columns(labels: Sequence[pa.Field]) -> pa.Schema:
    """The columns of `density.parquet` for rows with these labels."""
    first = [("row_id", pa.int64()), ("log_density", pa.float64())]
    return pa.schema([*first, *_FIGURES.items(), ("n_observed", pa.int32()), *_SPENT.items(), *_AUDIT.items(), *labels])


@dataclass
class DensityWork(Work):
    """The log-density of every row, from draws on disk or made now."""

    stored_draws: "DrawStore | None" = None  # draws on disk that were made with the same settings
    is_bridged: bool = True  # every row, as the settings or draws on disk want it
    schema_name = DENSITY_SCHEMA

    @property
    def file(self) -> Path:
        return self.job.layout.density_file(self.job.set_name)

    def find_draws(self) -> None:
        """Use the draws on disk, if there are any and they belong to the same settings."""
        job = self.job.of_draws()
        try:
            found = job.stored_plan()
        except MissingArtifact:  # removed by `posterior --restart`
            found = None
        except BadArtifact as error:
            self.report.warn(f"{error.what}, and {job.label} is not used; to repair it, {error.hint}")
            found = None
        if found is not None and found == job.plan(self.rows.n_rows):
            from bayesnde_cli.stages.posterior_draws import DrawStore

            self.stored_draws = DrawStore(job.layout, found)
        elif found is not None:
            self.report.note(f"{job.label} was made with other settings and is not used")
        assert isinstance(self.job.config, DensitySettings)
        self.is_bridged = self.job.config.method == BRIDGE or self._freeze_draws(self.stored_draws is not None)

    def _freeze_draws(self, has_draws: bool) -> bool:
        """Whether the set is scored from draws on disk: the first process decides, as all blocks must agree."""
        path = self.job.layout.draws_file(self.job.set_name)
        files.create_once(path, files.json_bytes({"schema_version": files.FORMAT_VERSION, "has_draws": has_draws}))
        return bool(files.read_object(path)["has_draws"])

    @cached_property
    def audited(self) -> np.ndarray:
        """Which rows of the set a bridge checks, (rows,) bool."""
        config, n_rows = self.job.config, self.plan.n_rows
        assert isinstance(config, DensitySettings)
        is_audited = np.zeros(n_rows, bool)
        if config.audit:
            n = min(_MOST_AUDITED, max(_LEAST_AUDITED, round(config.audit * n_rows)), n_rows // _ROWS_PER_AUDIT)
            is_audited[np.argsort(bits_at(derive_seed(self.plan.seed, "audit"), np.arange(n_rows)))[:n]] = True
        return is_audited

    def compute(self, block: int, advance: Advance) -> None:
        first, stop = self.plan.rows(block)
        rows = self.rows.block(first, stop)
        if self.is_bridged:
            figures = self._bridge(block, rows)
        else:
            seed = derive_seed(self.plan.seed, self.plan.stage, block)
            figures = self.opened.engine.estimate(rows, seed, self.audited[first:stop], advance)
        table = _density_table(rows, figures, density_columns(self.rows.label_fields))
        blocks.publish_block(self.job.layout, self.plan, block, table)

    def _bridge(self, block: int, rows: Rows) -> dict[str, np.ndarray]:
        n_rows = self.plan.block_rows
        # Padded as rows are, the last row repeated: draws on disk lack the padding, and must equal draws made now.
        index = np.minimum(np.arange(n_rows), len(rows) - 1)
        draws = Draws(*(array[index] for array in self._draws(block, rows)))
        seed = derive_seed(self.plan.seed, self.plan.stage, block)
        return self.opened.engine.score(rows.pad(n_rows), draws, seed, n_real=len(rows))

    def _draws(self, block: int, rows: Rows) -> Draws:
        """The draws of a block: those on disk, or the same ones made now."""
        if self.stored_draws is not None and self.stored_draws.has(block):
            try:
                return self.stored_draws.read(block)
            except (BadArtifact, MissingArtifact) as error:  # damaged, or removed by `posterior --restart`
                label = self.job.of_draws().label
                self.report.warn(f"{error.what}: draws are made again here; to repair {label}, {error.hint}")
                self.stored_draws = None
        return self.draw(block, rows)

    def tables(self) -> Iterator[pa.Table]:
        return blocks.iter_blocks(self.job.layout, self.plan)

    def figures(self, table: pa.Table) -> dict[str, Any]:
        log_density = table["log_density"].to_numpy()
        is_finite = np.isfinite(log_density)
        # A row with missing cells has the density of its observed cells, which is another quantity.
        is_complete = table["n_observed"].to_numpy() == self.rows.n_features
        in_mean = log_density[is_complete & is_finite]
        return {
            "n_rows": table.num_rows,
            "n_reliable": pc.sum(table["reliable"]).as_py(),
            "n_not_finite": int((~is_finite).sum()),
            "n_incomplete": int((~is_complete).sum()),
            "n_in_mean": len(in_mean),
            "sum": math.fsum(in_mean),
            "verdicts": Counter(table["verdict"].to_pylist()),
            "methods": Counter(table["method"].to_pylist()),
            "audit": audit_differences(table),
        }

    def summarise(self, figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        n_in_mean = sum(block["n_in_mean"] for block in figures)
        verdicts, methods = (
            sum((block[name] for block in figures), Counter[str]()) for name in ("verdicts", "methods")
        )
        audit = np.concatenate([np.empty((0, 2)), *(block["audit"] for block in figures)])
        return {
            **{name: sum(block[name] for block in figures) for name in _COUNTS},
            "mean_log_density": math.fsum(block["sum"] for block in figures) / n_in_mean if n_in_mean else None,
            "verdicts": dict(verdicts.most_common()),
            "methods": dict(methods.most_common()),
            "audit": audit_figures(audit),
        }


def _density_table(rows: Rows, figures: dict[str, np.ndarray], columns: pa.Schema) -> pa.Table:
    """The estimates of a block's rows; arrays may be longer, by the rows that fill up the block.

    log_density and log_density_is are log p(observed cells) in the units of the file, including the log-Jacobian.
    """
    nothing = np.full(len(rows), np.nan)
    values = {name: np.array(figures.get(name, nothing)[: len(rows)]) for name in (*_FIGURES, *_SPENT, *_AUDIT)}
    for name in ("verdict", "method"):
        values[name] = values[name].astype(object)
    for name, value in _OF_NO_CELLS.items():
        values[name][rows.n_observed == 0] = value
    # The engine's estimates are in the model's space; of these columns only `log_density_scaled` stays there.
    values["log_density"] = values["log_density_scaled"] + rows.log_jacobian
    for name in ("log_density_is", "audit_log_density"):
        values[name] = values[name] + rows.log_jacobian
    has_chains, is_audited = values["method"] == BRIDGE, ~np.isnan(values["audit_mc_se"])
    values |= {"row_id": rows.row_ids, "n_observed": rows.n_observed}
    arrays = []
    for column in columns:
        label = rows.labels.get(column.name)
        if label is not None:
            arrays.append(label.combine_chunks())
            continue
        is_null = ~has_chains if column.name in _OF_CHAINS else ~is_audited if column.name in _AUDIT else None
        value = values[column.name]
        if is_null is not None and not pa.types.is_floating(column.type):
            value = np.where(is_null, 0, value).astype(column.type.to_pandas_dtype())
        arrays.append(pa.array(value, column.type, mask=is_null))
    return pa.Table.from_arrays(arrays, schema=columns)


def audit_differences(table: pa.Table) -> np.ndarray:
    """The audited rows of a table: log-density minus that of the bridge, and its standard error. (rows, 2)."""
    audited = table.filter(pc.is_valid(table["audit_mc_se"]))
    names = ("log_density", "audit_log_density", "mc_se", "audit_mc_se")
    value, bridged, se, se_bridged = (audited[name].to_numpy() for name in names)
    return np.stack([value - bridged, np.hypot(se, se_bridged)], axis=1)


def audit_figures(differences: np.ndarray) -> dict[str, Any] | None:
    """What an audit found, from differences and their standard errors (rows, 2); None if no row was audited.

    Rows whose own bridge is not reliable have infinite errors: they are only counted.
    """
    is_checked = np.isfinite(differences).all(axis=1)
    n_unchecked, differences = int((~is_checked).sum()), differences[is_checked]
    n = len(differences)
    if not n:
        return None
    from scipy.stats import binom  # takes a second to import

    difference, se = differences.T
    n_covered = int((np.abs(difference) <= 1.96 * se).sum())
    n_off = int((np.abs(difference) > _MOST_OFF + 5.0 * se).sum())
    return {
        "n_rows": n,
        "n_unchecked": n_unchecked,
        "largest_difference": float(np.abs(difference).max()),
        "n_covered": n_covered,
        "coverage": n_covered / n,
        "is_as_promised": n_off == 0 and float(binom.cdf(n_covered, n, 0.95)) > _AUDIT_CHANCE,
    }


@dataclass(frozen=True)
class DensityResult:
    """The result of `density`; `columns` are those that the user wants to see."""

    file: str
    set_name: str
    is_up_to_date: bool
    n_rows: int
    n_reliable: int
    mean_log_density: float | None  # of the complete rows where it is finite
    verdicts: Mapping[str, int]
    n_not_finite: int
    n_incomplete: int  # rows with missing cells
    methods: Mapping[str, int]
    audit: Mapping[str, Any] | None
    made_with: Mapping[str, int]  # number of blocks by package versions
    columns: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "columns"}

    def __str__(self) -> str:
        text = f"{self.file}: {counted(self.n_rows, 'row')}, {self._mean()}, {self.n_reliable:,} reliable"
        if self.audit:
            text += (
                f"; audit of {counted(self.audit['n_rows'], 'row')}: largest difference "
                f"{self.audit['largest_difference']:.3f} nats, {100 * self.audit['coverage']:.0f} % within the interval"
            )
        return f"{text} (up to date)" if self.is_up_to_date else text

    def _mean(self) -> str:
        if self.n_incomplete == self.n_rows:
            return "no mean log-density (every row has missing cells)"
        mean = "not finite" if self.mean_log_density is None else f"{self.mean_log_density:.4f}"
        counts = {"with missing cells": self.n_incomplete, "where it is not finite": self.n_not_finite}
        left_out = " and ".join(f"{counted(n, 'row')} {which}" for which, n in counts.items() if n)
        return f"mean log-density {mean} (units of the file" + (f"; without {left_out})" if left_out else ")")


def _density_result(job: Job, report: Report, columns: list[str], *, is_up_to_date: bool) -> DensityResult:
    found = Manifest.read(job.manifest_file).result
    result = DensityResult(
        str(job.layout.density_file(job.set_name)), job.set_name, is_up_to_date, columns=columns, **found
    )
    if result.audit and not result.audit["is_as_promised"]:
        report.warn(
            f"the audit failed: of {result.audit['n_rows']} rows scored again by bridge sampling, "
            f"{result.audit['n_covered']} agree within their 95 % interval, and the largest difference is "
            f"{result.audit['largest_difference']:.2f} nats; score with --method bridge"
        )
    shares = [[name, f"{n:,}", f"{100 * n / max(result.n_rows, 1):.1f}%"] for name, n in result.verdicts.items()]
    report.table("verdicts", ["verdict", "rows", "share"], shares)
    return result


def _select(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns that the user wants, in the order given; all if none is given."""
    pieces = [piece.strip() for item in wanted for piece in item.split(",")]
    found = [name for piece in pieces for name in match_columns([piece], names, option="--columns")]
    return list(dict.fromkeys(found)) or list(names)
