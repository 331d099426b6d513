"""All draws of a data set in one netCDF file, as ArviZ reads it.

    posterior       z               (chain, draw, row, latent)
    sample_stats    acceptance, …   (row): what is known of the chains of each row

Groups and attributes are those of ArviZ's InferenceData schema; the coordinate `row` holds the row_id.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bayesnde_cli import __version__
from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts.atomic import writing
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.scoring.draws import MODES, DrawStore
from bayesnde_cli.stages.scoring.job import Job
from bayesnde_cli.stages.scoring.outcomes import CHAIN_RESULT
from bayesnde_cli.stages.scoring.sharing import alone

if TYPE_CHECKING:
    import h5netcdf

_WRITER = "h5netcdf"


def require_writer() -> None:
    """Refuse, before the long work, if the package that writes netCDF is not there."""
    if find_spec(_WRITER) is None:
        raise BadUsage(
            "--export netcdf needs a package that is not installed",
            found=f"no {_WRITER}",
            hint="run `pip install 'bayesnde[arviz]'`, then the same command again",
        )


def export_draws(job: Job, report: Report) -> Path:
    """The file with all draws of a finished `posterior`, written now, a block at a time."""
    import h5netcdf

    path = job.layout.exported_draws_file(job.set_name)
    with alone(job.layout, job.stage, job.set_name, report):  # nobody removes the blocks meanwhile
        manifest = manifests.read(job.layout.manifest_file(job.stage, job.set_name))
        plan = job.plan(manifests.result_of(job.layout, manifest, CHAIN_RESULT)["n_rows"])
        with writing(path) as temporary, h5netcdf.File(temporary, "w") as file:
            _write(file, DrawStore(job.layout, plan), plan)
            for group in (file, *file.groups.values()):
                group.attrs["created_at"] = manifest.ended  # the draws, that is
                group.attrs["inference_library"], group.attrs["inference_library_version"] = "bayesnde", __version__
    return path


def _write(file: "h5netcdf.File", store: DrawStore, plan: Plan) -> None:
    _, n_chains, n_draws, n_latent = store.read(0).z.shape
    names = [name for name in store.diagnostics(0).column_names if name not in ("row_id", MODES)]
    sizes = {"chain": n_chains, "draw": n_draws, "row": plan.n_rows, "latent": n_latent}
    posterior, stats = _group(file, "posterior", sizes), _group(file, "sample_stats", {"row": plan.n_rows})
    # A chunk for each chain of a block: blocks are written, and rows read, without the rest of the file.
    chunks = (1, n_draws, min(plan.block_rows, plan.n_rows), n_latent)
    posterior.create_variable("z", tuple(sizes), "f4", chunks=chunks)
    for block in range(plan.n_blocks):
        rows, diagnostics = slice(*plan.rows(block)), store.diagnostics(block)
        posterior["z"][:, :, rows] = store.read(block).z.transpose(1, 2, 0, 3)
        for group in (posterior, stats):
            group["row"][rows] = diagnostics["row_id"].to_numpy()
        for name in names:
            values = diagnostics[name].to_numpy()
            if block == 0:
                stats.create_variable(name, ("row",), values.dtype)
            stats[name][rows] = values


def _group(file: "h5netcdf.File", name: str, sizes: dict[str, int]) -> "h5netcdf.Group":
    """A new group with its dimensions, which count from 0 where nothing else is written."""
    group = file.create_group(name)
    group.dimensions = sizes
    for dimension, size in sizes.items():
        group.create_variable(dimension, (dimension,), "i8")[:] = np.arange(size)
    return group
