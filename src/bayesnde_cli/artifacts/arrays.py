"""Named arrays in one file: weights, and the whole state of a training run. Atomic, checked, never unpickled.

The file is a zip of NPY members, as `numpy.load` reads it. Its comment, which ends it, is the SHA-256 of all before.
"""

import hashlib
import io
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesnde_cli.artifacts.atomic import write_bytes
from bayesnde_cli.artifacts.canonical import is_count, json_bytes
from bayesnde_cli.artifacts.layout import missing_hint, repair_hint
from bayesnde_cli.errors import BadArtifact, MissingArtifact
from bayesnde_cli.headers.bad_header import BadHeader

if TYPE_CHECKING:
    import numpy as np

SCHEMA_VERSION = 2  # 2: with a digest
_DIGEST_SINCE = 2
# What the file says about itself stands in it as the bytes of a JSON text.
_FACTS = "facts.json"
# A zip member carries a date; one date for all keeps equal arrays byte-equal. It is the earliest that zip knows.
_DATE = (1980, 1, 1, 0, 0, 0)
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_DIGEST_BYTES = 64
# What zipfile and json let out; RuntimeError: a member with a password, or packed in an unknown way.
_DAMAGE = (zipfile.BadZipFile, zlib.error, BadHeader, ValueError, KeyError, EOFError, OSError, RuntimeError)


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
        archive.comment = b"0" * _DIGEST_BYTES
    before = buffer.getbuffer()[:-_DIGEST_BYTES]
    write_bytes(path, bytes(before) + hashlib.sha256(before).hexdigest().encode())


def read_arrays(path: Path) -> "tuple[dict[str, np.ndarray], dict[str, Any]]":
    """The arrays and facts of a file; `BadArtifact` if it is damaged or of a newer version."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            has_digest = _DIGEST.fullmatch(archive.comment) is not None
            if has_digest and not _is_unchanged(file, archive.comment):
                raise ValueError("it is not what its own SHA-256 says")
            _refuse_packed(archive, file.seek(0, os.SEEK_END))
            facts = json.loads(archive.read(_FACTS))
            version = facts.get("schema_version") if isinstance(facts, dict) else None
            if not is_count(version) or version < 1:
                raise ValueError(f"schema_version is {version!r}")
            _refuse_newer(path, version)
            if version >= _DIGEST_SINCE and not has_digest:
                raise ValueError("it does not say what its SHA-256 is")
            arrays = dict(_arrays(archive))
    except FileNotFoundError:
        raise MissingArtifact(f"{path} is not there", found="no such file", hint=missing_hint(path)) from None
    except (*_DAMAGE, RecursionError) as error:
        raise BadArtifact(f"{path} is damaged", found=str(error), hint=repair_hint(path)) from None
    return arrays, facts


def _arrays(archive: zipfile.ZipFile) -> "Iterator[tuple[str, np.ndarray]]":
    import numpy as np

    from bayesnde_cli.headers.npy import read_npy_header

    for name in archive.namelist():
        if name == _FACTS:
            continue
        data = archive.read(name)
        header = read_npy_header(io.BytesIO(data))
        if header.dtype.hasobject or header.is_column_major or len(data) != header.n_header_bytes + header.n_bytes:
            raise BadHeader(f"{name} is not an array of {header.dtype} {header.shape} in {len(data)} bytes")
        # A copy: what is read from bytes cannot be written to.
        flat = np.frombuffer(data, header.dtype, offset=header.n_header_bytes).copy()
        yield name.removesuffix(".npy"), flat.reshape(header.shape)


def _is_unchanged(file: io.BufferedReader, digest: bytes) -> bool:
    """Whether what stands before the digest, the last bytes of a file, has it."""
    n_left = file.seek(0, os.SEEK_END) - _DIGEST_BYTES
    found = hashlib.sha256()
    file.seek(0)
    while n_left > 0 and (piece := file.read(min(n_left, 1 << 20))):
        found.update(piece)
        n_left -= len(piece)
    return found.hexdigest().encode() == digest


def _refuse_packed(archive: zipfile.ZipFile, n_bytes: int) -> None:
    """Members are stored as they are: together they are no larger than the file."""
    members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("a member is packed")
    if sum(member.file_size for member in members) > n_bytes:
        raise ValueError(f"members of more than the {n_bytes} bytes of the file")


def _refuse_newer(path: Path, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise BadArtifact(
            f"{path} was written by a newer bayesnde",
            found=f"schema version {version}, this bayesnde reads up to {SCHEMA_VERSION}",
            hint=f"upgrade bayesnde, or {repair_hint(path)}",
        )
