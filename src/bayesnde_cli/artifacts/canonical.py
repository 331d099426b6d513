"""JSON with one spelling for one value, so that equal things have equal bytes and equal hashes."""

import json
from pathlib import Path
from typing import Any, TypeGuard

from bayesnde_cli.artifacts.layout import missing_hint, repair_hint
from bayesnde_cli.errors import BadArtifact, MissingArtifact

# A schema of 100,000 columns is a tenth of this.
_LARGEST_BYTES = 1 << 30


def json_bytes(value: Any) -> bytes:
    """The value as JSON: sorted keys, two blanks of indent, UTF-8, a final newline. NaN and infinity are refused."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    # A file name may hold bytes that are no UTF-8; Python hands them on as lone surrogates.
    return (text + "\n").encode("utf-8", "backslashreplace")


def read_object(path: Path, *, newest: int) -> dict[str, Any]:
    """The JSON object in a file of the run, of a `schema_version` from 1 to `newest`."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ValueError(f"{path.stat().st_size:,} bytes, no document of ours has as many")
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise MissingArtifact(f"{path} is not there", found="no such file", hint=missing_hint(path)) from None
    except (ValueError, OSError, RecursionError) as error:  # not JSON, not UTF-8, a folder, or not for us to read
        raise BadArtifact(f"{path} is damaged", found=str(error), hint=repair_hint(path)) from None
    if not isinstance(found, dict):
        raise BadArtifact(f"{path} is damaged", found="not a JSON object", hint=repair_hint(path))
    version = found.get("schema_version")
    if not is_count(version) or version < 1:
        raise BadArtifact(f"{path} is damaged", found=f"schema_version is {version!r}", hint=repair_hint(path))
    if version > newest:
        raise BadArtifact(
            f"{path} was written by a newer bayesnde",
            found=f"schema version {version}, this bayesnde reads up to {newest}",
            hint=f"upgrade bayesnde, or {repair_hint(path)}",
        )
    return found


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value read from JSON is a whole number that is not negative (True and False are not)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
