"""Named arrays in one file: weights, and the whole state of a training run. Atomic, checked, never unpickled."""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesnde_cli.artifacts.atomic import write_bytes
from bayesnde_cli.artifacts.canonical import json_bytes
from bayesnde_cli.artifacts.layout import missing_hint, repair_hint
from bayesnde_cli.errors import BadArtifact, MissingArtifact

if TYPE_CHECKING:
    import numpy as np

SCHEMA_VERSION = 1
# What the file says about itself stands in it as the bytes of a JSON text.
_FACTS = "facts.json"
# A zip member carries a date; one date for all keeps equal arrays byte-equal. It is the earliest that zip knows.
_DATE = (1980, 1, 1, 0, 0, 0)


def write_arrays(path: Path, arrays: "Mapping[str, np.ndarray]", facts: Mapping[str, Any]) -> None:
    """Put arrays and the facts about them in place, over an older file if there is one. Equal content, equal bytes."""
    import numpy as np

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_FACTS, _DATE), json_bytes({**facts, "schema_version": SCHEMA_VERSION}))
        for name in sorted(arrays):
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(arrays[name], order="C"), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _DATE), member.getvalue())
    write_bytes(path, buffer.getvalue())


def read_arrays(path: Path) -> "tuple[dict[str, np.ndarray], dict[str, Any]]":
    """The arrays and facts of a file; `BadArtifact` if it is damaged or of a newer version."""
    import numpy as np

    try:
        with zipfile.ZipFile(path) as archive:
            facts = json.loads(archive.read(_FACTS))
            arrays = {
                name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in archive.namelist()
                if name != _FACTS
            }
    except FileNotFoundError:
        raise MissingArtifact(f"{path} is not there", found="no such file", hint=missing_hint(path)) from None
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, OSError) as error:
        raise BadArtifact(f"{path} is damaged", found=str(error), hint=repair_hint(path)) from None
    version = facts.get("schema_version") if isinstance(facts, dict) else None
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise BadArtifact(
            f"{path} was written by a newer bayesnde",
            found=f"schema version {version}, this bayesnde reads up to {SCHEMA_VERSION}",
            hint=f"upgrade bayesnde, or {repair_hint(path)}",
        )
    return arrays, facts
