"""What a training stage leaves: the chosen weights, the history, the looks at the validation rows, the latents."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import tensorflow as tf

from bayesnde_cli.artifacts.arrays import write_arrays
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.tables import write_table
from bayesnde_cli.stages.training.fitting import Fit
from bayesnde_cli.stages.training.looks import ranks
from bayesnde_cli.stages.training.rows import read_rows
from bayesnde_cli.training.joint_parameters import encoder_of

_VERSION = 1
_ROWS_AT_ONCE = 8192


def write_results(folder: Path, layout: RunLayout, stage: str, result: Fit, *, run_id: str) -> list[str]:
    """Write the outputs of a stage into a folder; their names below it."""
    rank = ranks(result.looks)
    selection = [
        {**look, "rank": rank[index], "is_chosen": index == result.chosen} for index, look in enumerate(result.looks)
    ]
    files = {
        layout.history_file(stage).name: ("history", _table(result.history)),
        layout.selection_file(stage).name: ("selection", _table(selection)),
    }
    if stage == "refine":
        files[layout.latents_file().name] = ("latents", _latents(layout, result))
    for name, (schema_name, table) in files.items():
        write_table(folder / name, table, schema_name=schema_name, schema_version=_VERSION, run_id=run_id)
    weights = f"{layout.weights_dir(stage).name}/model.npz"
    facts = {"decoder": asdict(result.networks.decoder), "encoder": asdict(result.networks.encoder), "run_id": run_id}
    write_arrays(folder / weights, result.weights, facts)
    return [*files, weights]


def _table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows with the columns of all of them (phases have terms of their own), in an order that no resumption changes."""
    first = ("phase", "round", "epoch", "step", "is_chosen", "marginal", "marginal_se", "plug_in", "rank", "loss")
    found = {name for row in rows for name in row}
    names = [*(name for name in first if name in found), *sorted(found.difference(first))]
    table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    # A column without a single value is a number, too.
    fields = [item.with_type(pa.float64()) if item.type == pa.null() else item for item in table.schema]
    return table.cast(pa.schema(fields))


def _latents(layout: RunLayout, result: Fit) -> pa.Table:
    """The encoder's proposal for every training row: where chains may start."""
    rows = read_rows(layout, "train")
    encoder = encoder_of(result.networks.encoder, {name: tf.constant(array) for name, array in result.weights.items()})
    x, y = rows.tensors()
    parts = []
    for start in range(0, len(rows.x), _ROWS_AT_ONCE):
        piece = slice(start, start + _ROWS_AT_ONCE)
        parts.append(encoder(x[piece], None if y is None else y[piece]))
    mean, sd = (tf.concat([getattr(part, name) for part in parts], axis=0).numpy() for name in ("mean", "sd"))
    lists = [pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1]) for values in (mean, sd)]
    return pa.table({"row_id": rows.row_ids, "z_mean": lists[0], "z_sd": lists[1]})
