"""Row ids and noise belong to a row's position in the file: beyond the first batch, and after dropped rows."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bayesnde_cli.data.schema import Schema
from bayesnde_cli.rng import derive_seed, uniform_at

N_ROWS = 70_000  # a batch has 65,536


def test_ids_and_noise_follow_the_position_in_the_file(bayesnde: Callable, tmp_path: Path) -> None:
    counts = np.random.default_rng(0).poisson(4.0, N_ROWS)
    dropped = {5, 70, 66_000}
    cells = ["" if row in dropped else str(count) for row, count in enumerate(counts)]
    (tmp_path / "d.csv").write_text("n,m\n" + "".join(f"{cell},{row % 7}\n" for row, cell in enumerate(cells)))
    outcome = bayesnde("prepare", tmp_path / "d.csv", "--missing", "drop", "--seed", "3", "--run", tmp_path / "r")
    assert outcome.code == 0
    folder = tmp_path / "r/prepare"
    splits = [pq.read_table(folder / f"{name}.parquet") for name in ("train", "validation", "test")]
    table = pa.concat_tables(splits).sort_by("row_id")
    row_ids = table["row_id"].to_numpy()
    assert row_ids.tolist() == [row for row in range(N_ROWS) if row not in dropped]
    assert np.array_equal(table["n"].to_numpy(), counts[row_ids])
    feature = Schema.from_json(json.loads((folder / "schema.json").read_text())).features[0]
    fraction = uniform_at(derive_seed(3, "prepare", "dequantize", "n"), row_ids)
    expected, _ = feature.map.forward(counts[row_ids].astype(float), fraction)
    scaled = table["x_scaled"].combine_chunks().flatten().to_numpy().reshape(-1, 2)[:, 0]
    assert np.array_equal(scaled, expected.astype(np.float32))
