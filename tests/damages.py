"""What can befall a file of a run: each damage is a function from the file's bytes to other bytes."""

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from bayesnde_cli.artifacts import arrays
from bayesnde_cli.artifacts.sealed import SEAL, sealed_bytes
from bayesnde_cli.artifacts.tables import Stamp, writing_table

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
    """The file as a later version would write it: whole, sealed, and of a schema that nobody here knows."""
    if path.suffix == ".json":
        document = json.loads(path.read_bytes()) | {"schema_version": 99}
        is_sealed = document.pop(SEAL, None) is not None
        path.write_bytes(sealed_bytes(document) if is_sealed else json.dumps(document).encode())
    elif path.suffix == ".npz":
        found, facts = arrays.read_arrays(path)
        known, arrays.SCHEMA_VERSION = arrays.SCHEMA_VERSION, 99
        arrays.write_arrays(path, found, facts)
        arrays.SCHEMA_VERSION = known
    elif path.suffix == ".parquet":
        table = pq.read_table(path)
        said = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        rewrite(path, table, said | {"bayesnde.schema_version": "99"})


def rewrite(path: Path, table: object, said: dict[str, str]) -> None:
    """Write a table again, whole and with a digest of its own, so that it says this about itself."""
    of = {name.removeprefix("bayesnde."): value for name, value in said.items()}
    stamp = Stamp(of["schema"], int(of["schema_version"]), of["run_id"], of.get("plan_hash"), of.get("made_with"),
                  int(of["block"]) if "block" in of else None)  # fmt: skip
    with writing_table(path, table.schema, stamp) as writer:  # type: ignore[attr-defined]
        writer.write(table)


def zipped(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npy_bytes(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
