"""Targets of the fuzz campaign: every file of a run directory, as the stages read it, and files of settings.

A run that is complete lies in a folder; one of its files at a time is replaced, read, and put back.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_mutations import WORDS, again_digested, damaged, json_files, parquet_files, text_files, zip_files
from hypothesis import strategies as st

from bayesnde_cli.artifacts import array_record, claims, manifest, plan, shards
from bayesnde_cli.artifacts.arrays import read_arrays
from bayesnde_cli.artifacts.blocks import read_block
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.sealed import sealed_bytes
from bayesnde_cli.artifacts.tables import Stamp, count_rows, iter_batches, read_table
from bayesnde_cli.artifacts.upstream import stale_inputs
from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.status_answer import StatusQuestion
from bayesnde_cli.config import PrepareConfig, RefineConfig, resolve
from bayesnde_cli.stages.block_progress import block_progress
from bayesnde_cli.stages.reading import read_schema
from bayesnde_cli.stages.report.training_curves import read_training
from bayesnde_cli.stages.scoring.density_table import DENSITY_SCHEMA, DENSITY_VERSION
from bayesnde_cli.stages.scoring.draws import DIAGNOSTICS_VERSION, DrawStore
from bayesnde_cli.stages.scoring.outcomes import DENSITY_RESULT, Scored
from bayesnde_cli.stages.scoring.rows import SetRows, staged_stamp
from damages import rewrite


class Target(NamedTuple):
    """A file of the run, how it is damaged, and how it is read."""

    damage: Callable[[bytes], st.SearchStrategy[bytes]]
    read: Callable[[RunLayout, Path], object]
    place: str = ""  # in the run, if it is not called so
    loads: str = ""  # a large module that it needs


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


def _density_table(layout: RunLayout, path: Path) -> object:
    return read_table(path, DENSITY_SCHEMA, schema_version=DENSITY_VERSION)


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


def _training_rows(layout: RunLayout, path: Path) -> object:
    from bayesnde_cli.stages.training.rows import read_rows  # TensorFlow

    return read_rows(layout, "validation")


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
    return [
        StatusQuestion(str(layout.root), is_verifying=is_json, is_json=is_json).answer(Console())
        for is_json in (False, True)
    ]


def _diagnostics(layout: RunLayout, path: Path) -> object:
    return read_table(path, "diagnostics", schema_version=DIAGNOSTICS_VERSION)


def _shards(content: bytes) -> st.SearchStrategy[bytes]:
    return _sealed(sealed_bytes({"schema_version": shards.SCHEMA_VERSION, "first": 1, "count": 8}))


def _claim(content: bytes) -> st.SearchStrategy[bytes]:
    record = {"token": "t", "place": "h.1", "pid": 3, "start_ticks": 4, "started": "now"}
    return json_files(json.dumps(record).encode(), is_sealed=False)


_SETTINGS = b"""[prepare]
drop = ["id*", 'note']
split = [0.8, 0.1, 0.1]
seed = 7
[refine]
epochs = 50
learning-rate = 1e-3
[evaluate]
baselines = false
"""


def _toml(content: bytes) -> st.SearchStrategy[bytes]:
    """A config file: damaged, or with odd values."""
    odd = ["[" * 5000, "9" * 5000, "1e999", "nan", "1979-13-40", '"""', "{a = {b = 1}}", "[[1], 2]", "0x" + "f" * 999]
    keys = ["prepare.seed", "refine.epochs", "density.draws", "a.b.c", '"\x1b"', "prepare.split"]
    values = st.sampled_from([*odd, *map(json.dumps, WORDS)])
    line = st.builds("{} = {}\n".format, st.sampled_from(keys), values)
    lines = st.lists(line, min_size=1, max_size=3).map("".join)
    return st.one_of(text_files(_SETTINGS), lines.map(str.encode))


def _resolved(layout: RunLayout, path: Path) -> object:
    return [resolve(stage, flags={}, environ={}, config_file=path) for stage in (PrepareConfig, RefineConfig)]


def _checkpoint(layout: RunLayout, path: Path) -> object:
    import fuzz_checkpoint

    return fuzz_checkpoint.read(layout)


def _array(layout: RunLayout, path: Path) -> object:
    record = array_record.read(layout, "test")
    return record and (record.is_of(layout), record.gather_name)


def add_unfinished(layout: RunLayout) -> None:
    """What a complete run no longer has, or never had: a checkpoint, and the record of an array."""
    import fuzz_checkpoint

    fuzz_checkpoint.write(layout)
    record = array_record.ArrayRecord("bayesnde-test", 8, str(layout.root), 2)
    layout.array_record_file("test").parent.mkdir(parents=True)
    array_record.write(layout, "test", record)


_TENSORFLOW = "tensorflow"
TARGETS = {
    "settings of --config": Target(_toml, _resolved, place="settings.toml"),
    "prepare/manifest.json": Target(_sealed, _manifest),
    "refine/manifest.json": Target(_sealed, _manifest),
    "density/test/manifest.json": Target(_sealed, _density_manifest),
    "density/test/plan.json": Target(_sealed, _plan),
    "density/test/shards.json": Target(_shards, lambda layout, path: shards.frozen_count(layout, "density", "test")),
    "density/test/.running": Target(_claim, lambda layout, path: claims.holder(path)),
    "slurm/test/array.json": Target(_plain, _array),
    "prepare/schema.json": Target(_plain, _schema),
    "prepare/test.parquet": Target(_tables, _rows),
    "prepare/validation.parquet": Target(_tables, _training_rows, loads=_TENSORFLOW),
    "density/new/rows.parquet": Target(_tables, _staged),
    "warmstart/checkpoint/state.npz": Target(_arrays, _checkpoint, loads=_TENSORFLOW),
    "warmstart/checkpoint/look-00001.npz": Target(_arrays, _checkpoint, loads=_TENSORFLOW),
    "warmstart/weights/model.npz": Target(_arrays, lambda layout, path: read_arrays(path)),
    "refine/weights/model.npz": Target(_arrays, _networks, loads=_TENSORFLOW),
    "refine/latents.parquet": Target(_tables, lambda layout, path: list(iter_batches(path, "latents", ["z_mean"]))),
    "refine/history.parquet": Target(_tables, _training),
    "refine/selection.parquet": Target(_tables, _training),
    "posterior/test/block-00000.parquet": Target(_tables, _draws),
    "posterior/test/diagnostics-00000.parquet": Target(_tables, _draws),
    "posterior/test/diagnostics.parquet": Target(_tables, _diagnostics),
    "density/test/block-00000.parquet": Target(_tables, _block),
    "density/test/density.parquet": Target(_tables, _density_table),
    "evaluate/test/metrics.json": Target(_plain, _metrics),
    "status: a manifest": Target(_sealed, _status, place="refine/manifest.json"),
    "status: a plan": Target(_sealed, _status, place="posterior/test/plan.json"),
    "status: a block": Target(lambda content: damaged(content), _status, place="posterior/test/block-00001.parquet"),
}
