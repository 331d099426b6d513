"""What can befall a file of a run: each damage is a function from the file's bytes to other bytes."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bayesnde_cli.runs import files, parquet_files
from bayesnde_cli.runs.parquet_files import Stamp

Damage = Callable[[Path, random.Random], None]


def truncated(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(1, len(content))])


def emptied(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def flipped(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def newer(path: Path, chance: random.Random) -> None:
    """The file as another version of the program would write it."""
    if path.suffix == ".json":
        document = json.loads(path.read_bytes()) | {"schema_version": 99}
        path.write_bytes(json.dumps(document).encode())
    elif path.suffix == ".npz":
        found, facts = files.read_arrays(path)
        with _format_version(99):
            files.write_arrays(path, found, facts)
    elif path.suffix == ".parquet":
        table = pq.read_table(path)
        with _format_version(99):
            parquet_files.write_table(path, table, stamp_of(table))


def stamp_of(table: pa.Table) -> Stamp:
    """The stamp of a table of a run."""
    said = {key.decode().removeprefix("bayesnde."): value.decode() for key, value in table.schema.metadata.items()}
    block = int(said["block"]) if "block" in said else None
    return Stamp(said["schema"], said["run_id"], said.get("plan_hash"), said.get("made_with"), block)


@contextmanager
def _format_version(version: int) -> Iterator[None]:
    known = files.FORMAT_VERSION
    files.FORMAT_VERSION = parquet_files.FORMAT_VERSION = version
    yield
    files.FORMAT_VERSION = parquet_files.FORMAT_VERSION = known
