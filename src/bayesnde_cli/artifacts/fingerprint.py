"""Hashes of content: what a stage read and wrote, and the names of data sets."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesnde_cli.artifacts.canonical import json_bytes

SET_NAME_LENGTH = 40
_HASH_DIGITS = 8


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's content, as 64 hexadecimal digits; the file is read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_bytes(data: bytes) -> str:
    """The SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_json(value: Any) -> str:
    """The SHA-256 of a value's canonical JSON: the order of keys does not matter."""
    return hashlib.sha256(json_bytes(value)).hexdigest()


def set_name(paths: Sequence[Path]) -> str:
    """The name of the data set in some files: the first one's stem, made safe, and eight digits of their content.

    `digits.csv` -> `digits-1a2b3c4d`. At most 40 characters, of letters, digits, `-`, `_` and `.` only. The digits
    keep it apart from `test`, `train` and `validation`, whatever the file is called.
    """
    return set_name_of(paths[0], [sha256_file(path) for path in paths])


def set_name_of(path: Path, hashes: Sequence[str]) -> str:
    """The name of the data set in files of these hashes, of which `path` is the first."""
    content = hashes[0] if len(hashes) == 1 else sha256_json(list(hashes))
    return f"{_safe_stem(path)}-{content[:_HASH_DIGITS]}"


def _safe_stem(path: Path) -> str:
    stem = Path(path.stem).stem if path.suffix == ".gz" else path.stem
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[: SET_NAME_LENGTH - _HASH_DIGITS - 1]
    # No dot or dash in front: neither a hidden folder nor something that looks like an option.
    return safe.strip(".-_") or "data"
