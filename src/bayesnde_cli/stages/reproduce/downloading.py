"""Raw files from their public archives, checked before they are put in their place: the only use of a network."""

import io
import zipfile
import zlib
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bayesnde_cli.artifacts import atomic
from bayesnde_cli.artifacts.fingerprint import sha256_bytes
from bayesnde_cli.errors import BadInput
from bayesnde_cli.stages.reporting import Report
from bayesnde_cli.stages.reproduce.raw_files import RawSet, raw_set_of

# No archive of these sets has a tenth of it, packed or unpacked.
_MOST_BYTES = 200 * 2**20
_SECONDS = 60


def download(folder: Path, files: Sequence[str], report: Report) -> None:
    """Fetch those of the files that are not there."""
    for file in files:
        if (folder / file).is_file():
            continue
        raw = raw_set_of(file)
        if raw.archive is None:
            raise BadInput(
                f"{file} cannot be downloaded",
                found=f"it is a file of {raw.source}, which has no stable address",
                hint=f"get it by hand, put it at {folder / file}, and leave --download out",
            )
        report.note(f"downloading {raw.archive}")
        _place(folder, raw, raw.archive)


def _place(folder: Path, raw: RawSet, address: str) -> None:
    """All files of the set from its archive."""
    members = _members(_fetched(address), address)
    for file, wanted in raw.files.items():
        data = members.get(Path(file).name)
        found = "nothing of that name" if data is None else f"SHA-256 {sha256_bytes(data)}"
        if data is None or found != f"SHA-256 {wanted}":
            raise BadInput(
                f"{address} does not hold the published {Path(file).name}",
                found=[found, f"expected SHA-256 {wanted}"],
                hint=f"the archive may have changed: get the file elsewhere, and put it at {folder / file}",
            )
    for file in raw.files:  # all of them are good: half a set is of no use
        atomic.write_bytes(folder / file, members[Path(file).name])


def _fetched(address: str) -> bytes:
    try:
        with urlopen(address, timeout=_SECONDS) as answer:
            data: bytes = answer.read(_MOST_BYTES + 1)
    except (URLError, OSError, ValueError, HTTPException) as error:
        raise BadInput(
            f"{address} cannot be fetched",
            found=str(getattr(error, "reason", error)),
            hint="try again, or get the file by another way and say with --data-dir where it is",
        ) from error
    if len(data) > _MOST_BYTES:
        raise BadInput(
            f"{address} is larger than it can be", found=f"more than {_MOST_BYTES:,} bytes", hint="get it by hand"
        )
    return data


def _members(data: bytes, address: str) -> dict[str, bytes]:
    """The files of a zip file by name; those of zip files in it, too."""
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
                raise zipfile.BadZipFile("it unpacks to more than it can")
            for entry in archive.infolist():
                inner = archive.read(entry)
                found |= (
                    _members(inner, address) if entry.filename.endswith(".zip") else {Path(entry.filename).name: inner}
                )
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        raise BadInput(f"{address} is no archive that can be read", found=str(error), hint="get it by hand") from error
    return found
