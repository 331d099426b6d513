"""`posterior`: draws from the latent posterior of every row, on disk and in one file for ArviZ.

Each block has a table of draws and one of chain diagnostics; the diagnostics of all blocks are combined in one table.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli import __version__
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.formatting import Advance, Report, counted
from bayesnde_cli.inference.diagnostics import Draws
from bayesnde_cli.runs import blocks, manifest
from bayesnde_cli.runs.blocks import Plan, Shard
from bayesnde_cli.runs.files import writing
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import Manifest, no_empty_folders
from bayesnde_cli.runs.parquet_files import read_table, write_table_once
from bayesnde_cli.settings.stage_settings import PosteriorSettings
from bayesnde_cli.stages import loading
from bayesnde_cli.stages.loading import EngineFactory, LazyEngine
from bayesnde_cli.stages.score import DensityWork, ShardResult, Work, start_plan
from bayesnde_cli.stages.scoring_job import Asked, Job, alone, is_up_to_date, make_job, open_rows

DIAGNOSTICS_SCHEMA = "diagnostics"
_MODES = "modes"
# The fields of `Draws` that have one number per row.
_PER_ROW = ("acceptance", "divergences", "step_size", "n_gradients", "missed_mass")


def run_posterior(
    layout: RunLayout, asked: Asked, config: PosteriorSettings, report: Report, *, factory: EngineFactory | None = None
) -> "PosteriorResult | ShardResult":
    """Draw from the latent posterior of every row."""
    if asked.is_exporting:
        _require_writer()
    job = make_job(layout, asked, config)
    with no_empty_folders(job.folder):
        is_done = is_up_to_date(job, is_restart=asked.is_restart)
        if not is_done:
            rows, opened = open_rows(job, report), LazyEngine(layout, job.config, factory or loading.open_engine)
            work = PosteriorWork(job, start_plan(job, rows), rows, opened, report)
            if part := work.run(work.freeze(asked)):
                return part
        return PosteriorResult(
            export=str(_export_draws(job, report)) if asked.is_exporting else None,
            folder=str(job.folder),
            set_name=job.set_name,
            is_up_to_date=is_done,
            n_chains=job.config.chains,
            n_draws=job.config.draws,
            **Manifest.read(job.manifest_file).result,
        )


def keep_draws(density: DensityWork, shard: Shard | None) -> None:
    """Make the draws of `density` as this stage does; `SettingsDiffer` if there are draws of other settings."""
    job = density.job.of_draws()
    if not is_up_to_date(job, is_restart=False):
        PosteriorWork(job, start_plan(job, density.rows), density.rows, density.opened, density.report).run(shard)


@dataclass
class PosteriorWork(Work):
    """Draws from the latent posterior of every row."""

    schema_name = DIAGNOSTICS_SCHEMA

    @cached_property
    def store(self) -> "DrawStore":
        return DrawStore(self.job.layout, self.plan)

    @property
    def file(self) -> Path:
        return self.job.layout.diagnostics_file(self.job.set_name)

    def compute(self, block: int, advance: Advance) -> None:
        rows = self.rows.block(*self.plan.rows(block))
        draws = self.draw(block, rows)
        self.store.write(block, rows.row_ids, draws, self.opened.engine.diagnostics(draws))

    def tables(self) -> Iterator[pa.Table]:
        return (self.store.diagnostics(block) for block in range(self.plan.n_blocks))

    def figures(self, table: pa.Table) -> dict[str, Any]:
        rhat = table["rhat_max"].to_numpy()
        rhat = rhat[np.isfinite(rhat)]
        return {
            "n_rows": table.num_rows,
            "divergences": pc.sum(table["divergences"]).as_py(),
            "rhat_max": float(rhat.max()) if len(rhat) else None,
            "n_not_finite": table.num_rows - len(rhat),
            "ess_min": min([math.inf, *table["ess_min"].to_pylist()]),
        }

    def summarise(self, figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        counts = {name: sum(block[name] for block in figures) for name in ("n_rows", "divergences", "n_not_finite")}
        rhat = [block["rhat_max"] for block in figures if block["rhat_max"] is not None]
        ess_min = min([math.inf, *(block["ess_min"] for block in figures)])
        return {**counts, "rhat_max": max(rhat, default=None), "ess_min": ess_min}


@dataclass(frozen=True)
class PosteriorResult:
    """The result of `posterior`."""

    folder: str
    set_name: str
    is_up_to_date: bool
    n_rows: int
    n_chains: int
    n_draws: int
    divergences: int
    rhat_max: float | None  # of the rows where it is finite
    ess_min: float
    n_not_finite: int  # rows whose R-hat is not finite
    made_with: Mapping[str, int]  # number of blocks by package versions
    export: str | None = None  # the file that all draws were written to

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        rhat = "R-hat not finite" if self.rhat_max is None else f"R-hat up to {self.rhat_max:.3f}"
        if self.n_not_finite and self.rhat_max is not None:
            rhat += f" (not finite for {counted(self.n_not_finite, 'row')})"
        text = (
            f"{self.folder}: {counted(self.n_rows, 'row')}, {counted(self.n_chains, 'chain')} of "
            f"{counted(self.n_draws, 'draw')} each, {rhat}, {counted(self.divergences, 'divergence')}"
        )
        text += f"; draws in {self.export}" if self.export else ""
        return f"{text} (up to date)" if self.is_up_to_date else text


class DrawStore:
    """The draws of a data set on disk."""

    def __init__(self, layout: RunLayout, plan: Plan) -> None:
        self._layout, self._plan = layout, plan

    def has(self, block: int) -> bool:
        return self._layout.block_file(self._plan.stage, self._plan.set_name, block).exists()

    def read(self, block: int) -> Draws:
        """The draws of a block."""
        diagnostics, table = self.diagnostics(block), blocks.read_block(self._layout, self._plan, block)
        n_rows, n_chains, n_draws = diagnostics.num_rows, table["chain"][-1].as_py() + 1, table["draw"][-1].as_py() + 1
        z = table["z"].combine_chunks().flatten().to_numpy().reshape(n_rows, n_chains, n_draws, -1)
        modes = diagnostics[_MODES].combine_chunks().flatten().to_numpy().reshape(n_rows, -1, z.shape[3])
        return Draws(*[z, *(diagnostics[name].to_numpy() for name in _PER_ROW), modes])

    def diagnostics(self, block: int) -> pa.Table:
        """The chain diagnostics of the rows of a block."""
        path = self._layout.diagnostics_file(self._plan.set_name, block)
        return read_table(path, blocks.block_stamp(self._plan, block, name=DIAGNOSTICS_SCHEMA))

    def write(self, block: int, row_ids: np.ndarray, draws: Draws, figures: dict[str, np.ndarray]) -> None:
        """Publish the draws of a block; arrays may be longer than `row_ids`, by the rows that fill up the block."""
        n_rows = len(row_ids)
        draws = Draws(*(array[:n_rows] for array in draws))
        offsets = np.arange(n_rows + 1, dtype=np.int32) * draws.modes[0].size
        diagnostics = {
            "row_id": row_ids,
            **{name: getattr(draws, name) for name in _PER_ROW},
            _MODES: pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(draws.modes).ravel())),
            **{name: values[:n_rows] for name, values in figures.items()},
        }
        _, n_chains, n_draws, n_latent = draws.z.shape
        chain, draw = np.indices((n_chains, n_draws), np.int32).reshape(2, -1)
        table = {
            "row_id": np.repeat(row_ids, n_chains * n_draws),
            "chain": np.tile(chain, n_rows),
            "draw": np.tile(draw, n_rows),
            "z": pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(draws.z).ravel()), n_latent),
        }
        path, versions = self._layout.diagnostics_file(self._plan.set_name, block), manifest.computing_versions()
        stamp = blocks.block_stamp(self._plan, block, name=DIAGNOSTICS_SCHEMA, made_with=versions)
        # Diagnostics first: a block that is there has its diagnostics.
        write_table_once(path, pa.table(diagnostics), stamp)
        blocks.publish_block(self._layout, self._plan, block, pa.table(table))


# Export


def _require_writer() -> None:
    """Refuse, before the long work, if the package that writes netCDF is missing."""
    if find_spec("h5netcdf") is None or find_spec("xarray") is None:
        raise BadUsage(
            "--export netcdf needs a package that is not installed",
            found="no h5netcdf or no xarray",
            hint="run `pip install 'bayesnde[arviz]'`, then the same command again",
        )


def _export_draws(job: Job, report: Report) -> Path:
    """Write all draws of a finished `posterior` to one netCDF file, through memory; its path.

    Groups and attributes follow ArviZ's schema: posterior/z (chain, draw, row, latent) and sample_stats/… (row). The
    coordinate `row` holds the row_id.
    """
    import xarray

    path = job.layout.exported_draws_file(job.set_name)
    with alone(job, report):  # so that no restart removes the blocks
        finished = Manifest.read(job.manifest_file)
        plan = job.plan(finished.result["n_rows"])
        store = DrawStore(job.layout, plan)
        z = np.concatenate([store.read(block).z for block in range(plan.n_blocks)]).transpose(1, 2, 0, 3)
        stats = read_table(job.layout.diagnostics_file(job.set_name), DIAGNOSTICS_SCHEMA)
    coordinates = {"row": stats["row_id"].to_numpy()}
    coordinates |= {name: np.arange(z.shape[axis]) for name, axis in (("chain", 0), ("draw", 1), ("latent", 3))}
    stats = stats.drop_columns(["row_id", _MODES])
    figures = {name: ("row", stats[name].to_numpy()) for name in stats.column_names}
    groups = {
        "/": xarray.Dataset(),
        "/posterior": xarray.Dataset({"z": (("chain", "draw", "row", "latent"), z)}, coordinates),
        "/sample_stats": xarray.Dataset(figures, {"row": coordinates["row"]}),
    }
    for group in groups.values():
        group.attrs["created_at"] = finished.ended  # of the draws
        group.attrs |= {"inference_library": "bayesnde", "inference_library_version": __version__}
    with writing(path) as temporary:
        xarray.DataTree.from_dict(groups).to_netcdf(temporary, engine="h5netcdf")
    return path
