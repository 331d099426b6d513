"""The raw files of the experiments: `raw_files.toml` has their sources and SHA-256, which are checked."""

import io
import tomllib
import zipfile
import zlib
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadInput
from bayesnde_cli.formatting import Report
from bayesnde_cli.runs.files import sha256_bytes, sha256_file, write_bytes

_TIMEOUT_SECONDS = 60


class RawSet(NamedTuple):
    """A published data set: its source, the SHA-256 of its files below the data directory, and its zip archive."""

    source: str
    files: dict[str, str]
    archive: str | None = None


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
RAW_SETS = {name: RawSet(**entry) for name, entry in _TABLE.items()}


def find_files(folder: Path, files: Sequence[str]) -> list[Path]:
    """The files below the data directory; the first that is missing, or not the published one, is refused."""
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raw = _set_of(missing[0])
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadInput(
            f"{folder / missing[0]} does not exist{more}",
            found=[f"it is a file of {raw.source}", *([f"archive: {raw.archive}"] if raw.archive else [])],
            hint=f"{'add --download, ' if raw.archive else ''}put it there, or name the data folder with --data-dir",
        )
    for file in files:
        try:
            found, expected = sha256_file(folder / file), _set_of(file).files[file]
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadInput(f"cannot read {folder / file}", found=reason, hint="check its permissions") from error
        if found != expected:
            raise BadInput(
                f"{folder / file} is not the published file",
                found=[f"SHA-256 {found}", f"expected {expected}"],
                hint="remove it and get it again, with --download where its archive is public",
            )
    return [folder / file for file in files]


def download(folder: Path, files: Sequence[str], report: Report) -> None:
    """Fetch the missing files from their public archives: the only use of a network."""
    for file in files:
        if (folder / file).is_file():
            continue
        raw = _set_of(file)
        if raw.archive is None:
            raise BadInput(
                f"{file} cannot be downloaded",
                found=f"it is a file of {raw.source}, which has no stable address",
                hint=f"get it by hand, put it at {folder / file}, and leave --download out",
            )
        report.note(f"downloading {raw.archive}")
        members = _unzip(_fetch(raw.archive), raw.archive)
        for name, expected in raw.files.items():  # check all first: half a set is useless
            found = sha256_bytes(members[Path(name).name]) if Path(name).name in members else "none"
            if found != expected:
                raise BadInput(
                    f"{raw.archive} does not hold the published {Path(name).name}",
                    found=["no file of that name" if found == "none" else f"SHA-256 {found}", f"expected {expected}"],
                    hint=f"the archive may have changed: get the file elsewhere, and put it at {folder / name}",
                )
        for name in raw.files:
            write_bytes(folder / name, members[Path(name).name])


def _set_of(file: str) -> RawSet:
    return RAW_SETS[file.split("/")[0]]


def _fetch(address: str) -> bytes:
    try:
        with stopping.interruptible(), urlopen(address, timeout=_TIMEOUT_SECONDS) as answer:
            return bytes(answer.read())
    except (OSError, HTTPException) as error:  # URLError is an OSError
        raise BadInput(
            f"{address} cannot be fetched",
            found=str(getattr(error, "reason", error)),
            hint="try again, or get the file another way and name the data folder with --data-dir",
        ) from error


def _unzip(data: bytes, address: str) -> dict[str, bytes]:
    """The files of a zip file by name, including those of zip files inside it."""
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                inner, path = archive.read(entry), Path(entry.filename)
                found |= _unzip(inner, address) if path.suffix == ".zip" else {path.name: inner}
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BadInput(f"{address} is not a readable zip file", found=str(error), hint="get it by hand") from error
    return found
