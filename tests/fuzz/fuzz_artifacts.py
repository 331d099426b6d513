"""Targets of the fuzz campaign: every file of a run directory, as the stages read it.

A run that is complete lies in a folder; one of its files at a time is replaced, read, and put back.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_mutations import again_digested, damaged, json_files, parquet_files, zip_files
from hypothesis import strategies as st

from bayesnde_cli.artifacts import claims, manifest, plan, shards
from bayesnde_cli.artifacts.arrays import read_arrays
from bayesnde_cli.artifacts.blocks import read_block
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.sealed import sealed_bytes
from bayesnde_cli.artifacts.tables import Stamp, count_rows, iter_batches, read_table
from bayesnde_cli.artifacts.upstream import stale_inputs
from bayesnde_cli.stages.block_progress import block_progress
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.report.training_curves import read_training
from bayesnde_cli.stages.scoring.draws import DIAGNOSTICS_VERSION, DrawStore
from bayesnde_cli.stages.scoring.outcomes import DENSITY_RESULT, Scored
from bayesnde_cli.stages.scoring.rows import SetRows, staged_stamp
from bayesnde_cli.stages.status import run_status
from damages import rewrite


class Target(NamedTuple):
    """A file of the run, how it is damaged, and how it is read."""

    name: str
    damage: Callable[[bytes], st.SearchStrategy[bytes]]
    read: Callable[[RunLayout, Path], object]


def _sealed(content: bytes) -> st.SearchStrategy[bytes]:
    return json_files(content, is_sealed=True)


def _plain(content: bytes) -> st.SearchStrategy[bytes]:
    return json_files(content, is_sealed=False)


def _arrays(content: bytes) -> st.SearchStrategy[bytes]:
    return zip_files(content, has_digest=True)


@st.composite
def _tables(draw: st.DrawFn, content: bytes) -> bytes:
    """A table of ours: damaged, damaged with a digest that is right, or whole with other columns, rows or stamp."""
    what = draw(st.integers(0, 2))
    if what == 0:
        return draw(parquet_files(content))
    if what == 1:
        return again_digested(draw(parquet_files(content)))
    table = pq.read_table(pa.BufferReader(content))
    said = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    for _ in range(draw(st.integers(1, 2))):
        table = _changed_table(draw, table)
    if draw(st.integers(0, 3)) == 0:
        key = draw(st.sampled_from(sorted(key for key in said if key.startswith("bayesnde.") and "sha256" not in key)))
        said[key] = draw(st.sampled_from(["", "0", "7", "99999", "x"])) if "version" not in key else "7"
    path = Path("rewritten.parquet")
    try:
        rewrite(path, table, {key: value for key, value in said.items() if key.startswith("bayesnde.")})
    except (pa.ArrowException, ValueError):  # nobody can write that
        return draw(parquet_files(content))
    return path.read_bytes()


def _changed_table(draw: st.DrawFn, table: pa.Table) -> pa.Table:
    what = draw(st.integers(0, 4))
    if what == 0:
        return table.slice(draw(st.integers(0, table.num_rows)), draw(st.integers(0, table.num_rows)))
    if what == 1:
        return pa.concat_tables([table] * draw(st.integers(2, 3)))
    if not table.num_columns:
        return table
    index = draw(st.integers(0, table.num_columns - 1))
    if what == 2:
        return table.remove_column(index)
    names = table.column_names
    if what == 3:
        return table.rename_columns([*names[:index], draw(st.sampled_from(["", "z", "<b>"])), *names[index + 1 :]])
    return table.set_column(index, names[index], pa.nulls(table.num_rows, draw(st.sampled_from(_TYPES))))


_TYPES = [pa.int8(), pa.float64(), pa.string(), pa.list_(pa.float32()), pa.list_(pa.float32(), 2), pa.bool_()]


def _manifest(layout: RunLayout, path: Path) -> object:
    found = manifest.read(path)
    manifest.check_outputs(found, path.parent, deep=found.outputs)
    return stale_inputs(layout, found)


def _density_manifest(layout: RunLayout, path: Path) -> object:
    found = manifest.read(path)
    return str(Scored("file", "test", True, **manifest.result_of(layout, found, DENSITY_RESULT)))


def _plan(layout: RunLayout, path: Path) -> object:
    plan.read(path)
    return block_progress(layout, "density", "test", [item.name for item in path.parent.iterdir()], is_running=True)


def _schema(layout: RunLayout, path: Path) -> object:
    schema = read_schema(layout)
    for feature in schema.features:
        values = np.array([0.0, 1.0])
        scaled, _ = feature.scale(values, np.arange(2), schema.seed)
        feature.map.to_value(feature.map.inverse(scaled))
    return schema.to_json()


def _networks(layout: RunLayout, path: Path) -> object:
    from bayesnde_cli.stages.weights import read_networks  # TensorFlow, which only this one needs

    return read_networks(layout, "refine")


def _rows(layout: RunLayout, path: Path) -> object:
    count_rows(path, "rows")
    list(iter_batches(path, "rows", ["row_id", "x_scaled"]))
    rows = SetRows(path, Stamp("rows", 1, plan.read(layout.plan_file("density", "test")).run_id), read_schema(layout))
    return rows.block(0, rows.n_rows) if rows.n_rows else rows


def _staged(layout: RunLayout, path: Path) -> object:
    made = plan.read(path.with_name("plan.json"))
    rows = SetRows(path, staged_stamp(made.run_id, made.inputs), read_schema(layout))
    return rows.block(0, rows.n_rows) if rows.n_rows else rows


def _draws(layout: RunLayout, path: Path) -> object:
    return DrawStore(layout, plan.read(path.with_name("plan.json"))).read(0)


def _block(layout: RunLayout, path: Path) -> object:
    from bayesnde_cli.stages.scoring.work import checked_block

    made = plan.read(path.with_name("plan.json"))
    columns = pq.read_schema(layout.density_file("test"))
    return checked_block(layout, made, 0, read_block(layout, made, 0), columns)


def _training(layout: RunLayout, path: Path) -> object:
    return read_training(layout, manifest.read(layout.manifest_file("refine")))


def _metrics(layout: RunLayout, path: Path) -> object:
    from bayesnde_cli.stages.evaluate import read_evaluated

    return str(read_evaluated(layout, "test", is_up_to_date=True))


def _status(layout: RunLayout, path: Path) -> object:
    return run_status(layout, ["prepare", "density"], is_verifying=True).as_dict()


def _diagnostics(layout: RunLayout, path: Path) -> object:
    return read_table(path, "diagnostics", schema_version=DIAGNOSTICS_VERSION)


def _shards(content: bytes) -> st.SearchStrategy[bytes]:
    return _sealed(sealed_bytes({"schema_version": shards.SCHEMA_VERSION, "first": 1, "count": 8}))


def _claim(content: bytes) -> st.SearchStrategy[bytes]:
    record = {"token": "t", "place": "h.1", "pid": 3, "start_ticks": 4, "started": "now"}
    return json_files(json.dumps(record).encode(), is_sealed=False)


TARGETS = [
    Target("prepare/manifest.json", _sealed, _manifest),
    Target("refine/manifest.json", _sealed, _manifest),
    Target("density/test/manifest.json", _sealed, _density_manifest),
    Target("density/test/plan.json", _sealed, _plan),
    Target("density/test/shards.json", _shards, lambda layout, path: shards.frozen_count(layout, "density", "test")),
    Target("density/test/.running", _claim, lambda layout, path: claims.holder(path)),
    Target("prepare/schema.json", _plain, _schema),
    Target("prepare/test.parquet", _tables, _rows),
    Target("density/new/rows.parquet", _tables, _staged),
    Target("refine/weights/model.npz", _arrays, _networks),
    Target("warmstart/weights/model.npz", _arrays, lambda layout, path: read_arrays(path)),
    Target("refine/latents.parquet", _tables, lambda layout, path: list(iter_batches(path, "latents", ["z_mean"]))),
    Target("refine/history.parquet", _tables, _training),
    Target("refine/selection.parquet", _tables, _training),
    Target("posterior/test/block-00000.parquet", _tables, _draws),
    Target("posterior/test/diagnostics-00000.parquet", _tables, _draws),
    Target("posterior/test/diagnostics.parquet", _tables, _diagnostics),
    Target("density/test/block-00000.parquet", _tables, _block),
    Target("density/test/density.parquet", _tables, lambda layout, path: read_table(path, "density")),
    Target("evaluate/test/metrics.json", _plain, _metrics),
    Target("status: a manifest", _sealed, _status),
    Target("status: a block", lambda content: damaged(content), _status),
]
# Where the file of a target lies, if it is not called so.
PLACES = {"status: a manifest": "refine/manifest.json", "status: a block": "posterior/test/block-00001.parquet"}
