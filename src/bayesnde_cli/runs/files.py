"""Files that are whole or absent, and claims: files by which a process says that it works on a block or a stage.

Every file is written to a temporary file, flushed, and put in place by one rename. Temporary files are named
`.tmp-<host>-<pid>-<random>-<name>`, so that `sweep` can tell which process owns them. JSON has one spelling per value,
so that equal values have equal bytes and equal hashes.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadArtifact, CannotWrite, MissingArtifact, StageBusy
from bayesnde_cli.runs.layout import CLAIM_NAME, RunLayout, is_claim, numbers, repair_hint

if TYPE_CHECKING:
    import numpy as np

FORMAT_VERSION = 1  # of every file of a run; there is one, and others are refused

# The name's characters other than letters, digits, dots and underscores are replaced: `-` separates it from the rest.
HOST = re.sub(r"[^A-Za-z0-9.]", "_", os.uname().nodename)
_TEMPORARY_NAME = re.compile(r"\.tmp-(?P<host>[^-]+)-(?P<pid>\d+)-[0-9a-f]{8}-.+")
# A process on another host cannot be looked up. No write pauses for a day.
_ABANDONED_SECONDS = 24 * 3600
# Owners refresh their claims every minute; one that has been silent this long counts as dead.
LEASE_SECONDS = 600.0
_REFRESH_SECONDS = 60.0

_SET_NAME_LENGTH = 40
_SET_HASH_DIGITS = 8
_FACTS = "facts.json"  # the member of an NPZ file that holds the facts about its arrays


def utc_now() -> str:
    """The time as files of a run write it: `2025-01-31T12:00:00+00:00`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# Writing


def write_bytes(path: Path, data: bytes) -> None:
    """Put a file in place, replacing an older one."""
    with writing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Put a value in place as canonical JSON."""
    write_bytes(path, json_bytes(value))


def create_once(path: Path, data: bytes) -> bool:
    """Whether this call created the file: of many writers, on any number of hosts, the first one wins."""
    # The first check spares the losers a flush to disk; the link alone decides who wins.
    return not path.exists() and write_once(path, lambda temporary: temporary.write_bytes(data))


def write_once(path: Path, write: Callable[[Path], object]) -> bool:
    """Whether this call put the file in place, written by `write(temporary)`; a file that is already there stays."""
    with _drafting(path) as temporary:
        write(temporary)
        _flush(temporary)
        return _publish_once(temporary, path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it replaces `path` if the block succeeds, and is removed if it fails."""
    with _drafting(path) as temporary:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)


@contextlib.contextmanager
def cannot_write(path: Path) -> Iterator[None]:
    """Turn the system's refusals to write below `path` into `CannotWrite`."""
    try:
        yield
    except BrokenPipeError:  # a reader of our output has gone: not about this path
        raise
    except OSError as error:
        raise CannotWrite(
            f"cannot write {path}",
            found=os.strerror(error.errno) if error.errno else str(error),
            hint="free some space, or choose a place that you may write to, and run the same command again; "
            "finished work is kept",
        ) from error


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    with contextlib.suppress(OSError):  # some network filesystems cannot; their servers keep names in order
        _flush(folder)


@contextlib.contextmanager
def _drafting(path: Path) -> Iterator[Path]:
    """A temporary path, removed at the end whatever happens; refusals of the system become `CannotWrite`."""
    temporary = temporary_beside(path)
    try:
        with cannot_write(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            flush_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):  # `sweep` removes it later
            temporary.unlink(missing_ok=True)


def _publish_once(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # NFS repeats a request whose reply was lost, and the repeated one finds our own link: count the links.
        return os.stat(temporary).st_nlink == 2
    except OSError:
        if path.exists():
            return False
        # A filesystem without hard links (exFAT, some FUSE mounts). Two writers that check in the same instant both
        # rename, and the later one stays: harmless, as blocks are equal and plans are read back and compared.
        os.replace(temporary, path)
    return True


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Temporary files and the processes that own them


def temporary_beside(path: Path) -> Path:
    """A fresh name for a temporary file in the folder of `path`, with the same suffix."""
    return path.with_name(f".tmp-{HOST}-{os.getpid()}-{os.urandom(4).hex()}-{path.name}")


def sweep(folder: Path) -> None:
    """Remove the temporary files of processes that are gone, or on other hosts silent for a day."""
    for path in folder.glob(".tmp-*"):
        match = _TEMPORARY_NAME.fullmatch(path.name)
        with contextlib.suppress(OSError):  # removed meanwhile, or not ours to remove
            if match is not None and _is_abandoned(path, match["host"], int(match["pid"])):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def _is_abandoned(path: Path, host: str, pid: int) -> bool:
    return not _is_running(pid) if host == HOST else time.time() - path.stat().st_mtime > _ABANDONED_SECONDS


def _is_running(pid: int) -> bool:
    """Whether a process of this host exists; its id may have been reused since."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to another user
    with contextlib.suppress(OSError, IndexError):  # no /proc on this system
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return state not in "ZX"  # killed, and its parent has not asked for its exit code
    return True


# Claims: if two processes want one block or stage, one gets it and the other skips or waits. A claim is created once,
# and refreshed while its owner lives. It saves time but does not guard the result: blocks are published once and do
# not depend on who computes them. `flock` is not used: it is unreliable on NFS.


class Claim(NamedTuple):
    """A claim of this or of another process, as it was read."""

    path: Path
    token: str
    host: str
    pid: int
    started: str
    is_alive: bool

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}"

    def refresh(self) -> bool:
        """Renew the lease. False if the claim is no longer ours: the lease ended while this process was suspended."""
        with contextlib.suppress(FileNotFoundError):
            if self._is_there():
                os.utime(self.path)
                return True
        return False

    def release(self) -> None:
        """Give the claim up, unless it has passed to another process or the disk has become read-only."""
        with contextlib.suppress(OSError):
            if self._is_there():
                self.path.unlink(missing_ok=True)

    def _is_there(self) -> bool:
        found = holder(self.path)
        return found is not None and found.token == self.token


def claim(path: Path) -> Claim | None:
    """The claim at `path`, new or taken over from a dead process; None if a live process holds it."""
    ours = _create_claim(path)
    found = holder(path) if ours is None else None
    return ours if found is None or found.is_alive else _take_over(path, found)


def holder(path: Path) -> Claim | None:
    """The claim at `path`, its owner alive or dead; None if there is no claim."""
    try:
        record, age = json.loads(path.read_bytes()), time.time() - path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    is_gone = record["host"] == HOST and not _is_running(record["pid"])
    # A claim of the future is dead, too: the clock was set back since.
    return Claim(path, **record, is_alive=abs(age) <= LEASE_SECONDS and not is_gone)


def block_holders(folder: Path, names: Iterable[str]) -> dict[int, Claim]:
    """The claims on blocks, by block; `names` are the files in the folder of the stage."""
    found = {index: holder(folder / f".claim-{index:05d}") for index in numbers(CLAIM_NAME, names)}
    return {index: who for index, who in sorted(found.items()) if who is not None}


@contextlib.contextmanager
def holding(path: Path) -> Iterator[Claim | None]:
    """The claim at `path` for as long as the block lasts; None if another live process holds it.

    A thread refreshes it, so that other hosts know that this process is alive however long a single step takes.
    """
    ours = claim(path)
    if ours is None:
        yield None
        return
    is_over = threading.Event()
    try:
        threading.Thread(target=_keep_alive, args=(ours, is_over), daemon=True).start()
        yield ours
    finally:
        is_over.set()
        ours.release()


@contextlib.contextmanager
def running(layout: RunLayout, stage: str, set_name: str | None = None) -> Iterator[Claim]:
    """The claim on a whole stage for as long as the block lasts; `StageBusy` if another process has it."""
    path = layout.claim_file(stage, set_name)
    with holding(path) as ours:
        if ours is None:
            raise StageBusy(
                f"{layout.label(stage, set_name)} is being made by another process",
                found=str(holder(path) or "it has just ended"),
                hint=f"wait for it; if it is dead, delete {path}",
            )
        yield ours


def sweep_claims(folder: Path) -> None:
    """Remove the claims of dead processes in a stage's folder: each is taken over and released."""
    for name in filter(is_claim, os.listdir(folder)):
        who = holder(folder / name)
        if who is not None and not who.is_alive and (taken := claim(folder / name)) is not None:
            taken.release()


def _keep_alive(ours: Claim, is_over: threading.Event) -> None:
    while not is_over.wait(_REFRESH_SECONDS):
        with contextlib.suppress(OSError):
            ours.refresh()


def _create_claim(path: Path) -> Claim | None:
    ours = Claim(path, os.urandom(8).hex(), HOST, os.getpid(), utc_now(), is_alive=True)
    record = {name: getattr(ours, name) for name in ("token", "host", "pid", "started")}
    return ours if create_once(path, json_bytes(record)) else None


def _take_over(path: Path, dead: Claim) -> Claim | None:
    """Replace a dead claim by ours, unless another process does.

    Whoever takes over must first hold a second claim, and then look again. Otherwise two processes could see the same
    dead claim, and the slower one would remove what the faster one has just put in its place. A process that dies here
    leaves the second claim dead, which is taken over in the same way.
    """
    with holding(path.with_name(f"{path.name}.taking")) as taking, cannot_write(path):
        found = holder(path)
        if taking is None or (found is not None and found.token != dead.token):
            return None
        path.unlink(missing_ok=True)
        return _create_claim(path)


# Hashes


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's content as 64 hexadecimal digits; the file is read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            stopping.check()
    return digest.hexdigest()


def sha256_bytes(data: bytes) -> str:
    """The SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_json(value: Any) -> str:
    """The SHA-256 of a value's canonical JSON; the order of keys does not matter."""
    return sha256_bytes(json_bytes(value))


def set_name_of(path: Path, hashes: Sequence[str]) -> str:
    """The name of the data set in files with these hashes, of which `path` is the first: `digits-1a2b3c4d`.

    At most 40 letters, digits, `-`, `_` and `.`. The digits of the hash keep it apart from `test`, `train` and
    `validation`, whatever the file is called.
    """
    content = hashes[0] if len(hashes) == 1 else sha256_json(list(hashes))
    stem = Path(path.stem).stem if path.suffix == ".gz" else path.stem
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[: _SET_NAME_LENGTH - _SET_HASH_DIGITS - 1]
    # No leading dot or dash: neither a hidden folder nor something that looks like an option.
    return f"{safe.strip('.-_') or 'data'}-{content[:_SET_HASH_DIGITS]}"


# JSON documents


class Document(BaseModel):
    """A JSON file of the run, declared once; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: int = FORMAT_VERSION

    @classmethod
    def read(cls, path: Path) -> Self:
        """The document in a file; `BadArtifact` if it is damaged or has another format version."""
        content = read_object(path)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise damaged(path, first_problem(error)) from None


def json_bytes(value: Any) -> bytes:
    """The value as JSON: sorted keys, an indent of two, UTF-8, a final newline. NaN and infinity are refused."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    # A file name may hold bytes that are not UTF-8; Python represents them as lone surrogates.
    return (text + "\n").encode("utf-8", "backslashreplace")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of the run; `BadArtifact` if it is damaged or has another format version."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise missing(path) from None
    except (ValueError, OSError, RecursionError) as error:  # not JSON, not UTF-8, a folder, or not readable
        raise damaged(path, str(error)) from None
    if not isinstance(found, dict):
        raise damaged(path, "not a JSON object")
    check_version(path, found.get("schema_version"))
    return found


def check_version(path: Path, found: object) -> None:
    """Raise `BadArtifact` if a file does not have the format version of this program."""
    if found != FORMAT_VERSION:
        raise BadArtifact(
            f"{path} has another format version",
            found=f"schema version {found}, this bayesnde reads {FORMAT_VERSION}",
            hint=repair_hint(path),
        )


def damaged(path: Path, found: str | Sequence[str]) -> BadArtifact:
    """The error for a file whose content is wrong."""
    return BadArtifact(f"{path} is damaged", found=found, hint=repair_hint(path))


def missing(path: Path) -> MissingArtifact:
    """The error for a file that does not exist."""
    return MissingArtifact(f"{path} is missing", found="no such file", hint=repair_hint(path))


def first_problem(error: ValidationError) -> str:
    """What pydantic refused first: the place and the reason."""
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    text = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text


# Named arrays: weights and training states


def write_arrays(path: Path, arrays: "Mapping[str, np.ndarray]", facts: Mapping[str, Any]) -> None:
    """Put arrays and the facts about them in place as an NPZ file. Equal content gives equal bytes."""
    import numpy as np

    # A `ZipInfo` without a date keeps equal content byte-equal.
    with writing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name in sorted(arrays):
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(arrays[name]), allow_pickle=False)
        archive.writestr(zipfile.ZipInfo(_FACTS), json_bytes({**facts, "schema_version": FORMAT_VERSION}))


def read_arrays(path: Path) -> "tuple[dict[str, np.ndarray], dict[str, Any]]":
    """The arrays and facts of a file; `BadArtifact` if it is damaged or has another format version."""
    import numpy as np

    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files if name != _FACTS}
            facts = json.loads(archive[_FACTS])
    except FileNotFoundError:
        raise missing(path) from None
    except Exception as error:  # zipfile, NumPy and json raise many kinds
        raise damaged(path, str(error)) from None
    check_version(path, facts.get("schema_version"))
    return arrays, facts
