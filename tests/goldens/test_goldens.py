"""Numbers and options of the first version in `frozen.json`: a change that touches them is deliberate."""

import io
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

FROZEN: dict[str, Any] = json.loads(Path(__file__).with_name("frozen.json").read_text("utf-8"))
SIMULATIONS = {
    "involute": "involute",
    "moons": "moons",
    "checkerboard": "checkerboard",
    "rings": "rings",
    "gmm": "gmm --dim 3 --rotate --seed 5",
    "linear": "linear-gaussian --dim 4",
}
PREPARATIONS = {
    "tail": "vehicle --condition class --split-method tail --scale minmax --test-rows 8",
    "order": "vehicle --drop class --split-method order --scale none --test-rows 8",
    "sklearn": "faithful --split-method train-test-split --scale-on all --test-rows 8",
    "robust": "cardio --outlier-label outlier --max-robust-z 8 --scale marginal --test-rows 8",
}


def _differences(golden: Any, found: Any, place: str = "") -> Iterator[str]:
    """Places where a value is not the golden's; numbers agree to 1e-9, as the last digits depend on the processor."""
    if isinstance(golden, dict) and isinstance(found, dict):
        for key in sorted(golden.keys() | found.keys()):
            yield from _differences(golden.get(key), found.get(key), f"{place}/{key}")
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        for index, (one, other) in enumerate(zip(golden, found, strict=True)):
            yield from _differences(one, other, f"{place}/{index}")
    elif isinstance(golden, float) and isinstance(found, float):
        if not math.isclose(golden, found, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{place}: golden {golden}, found {found}"
    elif golden != found:
        yield f"{place}: golden {golden}, found {found}"


def _checksum(values: list[Any]) -> float:
    """A number that depends on all cells and their order."""
    cells = [cell for value in values for cell in (value if isinstance(value, list) else [value])]
    if any(isinstance(cell, str) for cell in cells):
        return zlib.crc32(repr(cells).encode())
    return math.fsum((1 + index % 97) * float(cell) for index, cell in enumerate(cells) if cell is not None)


def _describe(table: pa.Table) -> dict[str, Any]:
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.to_pylist()
        columns[name] = {"type": str(column.type), "checksum": _checksum(values), "first": values[:2]}
    return {"rows": len(table), "columns": columns}


@pytest.mark.parametrize("name", SIMULATIONS)
def test_simulated_rows_are_the_frozen_ones(name: str, bayesnde: Callable) -> None:
    text = bayesnde("simulate", *SIMULATIONS[name].split(), "--rows", "30").out
    found = _describe(pyarrow.csv.read_csv(io.BytesIO(text.encode())))
    assert list(_differences(FROZEN["simulate"][name], found)) == []


@pytest.mark.parametrize("name", PREPARATIONS)
def test_schema_and_splits_are_the_frozen_ones(name: str, bayesnde: Callable, examples: Path, tmp_path: Path) -> None:
    data, *options = PREPARATIONS[name].split()
    assert bayesnde("prepare", examples / f"{data}.csv", *options, "--run", tmp_path).code == 0
    golden = FROZEN["prepare"][name]
    schema = json.loads((tmp_path / "prepare/schema.json").read_text("utf-8"))
    schema["features"] = schema["features"][: len(golden["schema"]["features"])]
    found = {
        split: _describe(pq.read_table(tmp_path / f"prepare/{split}.parquet")) for split in golden if split != "schema"
    }
    assert list(_differences(golden, found | {"schema": {key: schema[key] for key in golden["schema"]}})) == []


@pytest.mark.parametrize("command", FROZEN["options"])
def test_every_option_of_the_first_version_is_still_there(command: str, bayesnde: Callable) -> None:
    page = bayesnde(*([] if command == "bayesnde" else [command]), "--help").out
    assert set(FROZEN["options"][command]) <= set(re.findall(r"--[a-z][a-z-]*", page))


def test_one_changed_digit_is_one_difference() -> None:
    golden = FROZEN["simulate"]["moons"]
    found = json.loads(json.dumps(golden))
    found["columns"]["x1"]["first"][0] *= 1 + 1e-8
    assert len(list(_differences(golden, found))) == 1
