"""Files that are whole or absent: written beside their place under a temporary name, then published in one step.

Temporary files are called `.tmp-<place>-<pid>-<random>-<name>`, so that `sweep` can tell whose they are.
"""

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesnde_cli.artifacts.canonical import json_bytes
from bayesnde_cli.artifacts.held_signals import signals_held
from bayesnde_cli.artifacts.processes import Process, is_alive, place
from bayesnde_cli.errors import CannotWrite

TEMPORARY_PREFIX = ".tmp-"
# A process on another host cannot be looked up. No write of ours pauses for a day.
FOREIGN_TEMPORARY_SECONDS = 24 * 3600

_TEMPORARY_NAME = re.compile(r"\.tmp-(?P<place>[^-]+)-(?P<pid>\d+)-[0-9a-f]{8}-.+")
_MORE_SPACE = "free some space and run the same command again; finished work is kept"
_OTHER_FOLDER = "choose a place that you may write to"
_SOUND_DISK = "look after the disk, or the server that has it, and run the same command again; finished work is kept"
_WAYS_OUT = {
    errno.ENOSPC: _MORE_SPACE,
    errno.EDQUOT: _MORE_SPACE,
    errno.EFBIG: _MORE_SPACE,
    errno.EACCES: _OTHER_FOLDER,
    errno.EPERM: _OTHER_FOLDER,
    errno.EROFS: _OTHER_FOLDER,
    errno.ENOTDIR: _OTHER_FOLDER,
    errno.EEXIST: _OTHER_FOLDER,  # a file stands where a folder should be
    errno.EISDIR: _OTHER_FOLDER,  # a folder stands where a file should be
    errno.ENOENT: _OTHER_FOLDER,  # no folder can be made there
    errno.ENAMETOOLONG: _OTHER_FOLDER,
    errno.EIO: _SOUND_DISK,
    errno.ESTALE: _SOUND_DISK,
}
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
# Some network filesystems cannot flush a folder; their servers keep names in order by themselves.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF)


@dataclass
class Draft:
    """A file being written that will be published only if none is there: see `is_published` afterwards."""

    path: Path
    is_published: bool = False


def write_bytes(path: Path, data: bytes) -> None:
    """Puts a file in place, over an older one if there is one."""
    with writing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Puts a value in place as canonical JSON."""
    write_bytes(path, json_bytes(value))


def create_once(path: Path, data: bytes) -> bool:
    """Whether this call put the file in place: of many writers, on any number of hosts, the first one wins."""
    if os.path.exists(path):  # spares the losers a flush to disk; the winner is decided by the link alone
        return False
    with writing_once(path) as draft:
        draft.path.write_bytes(data)
    return draft.is_published


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path to write a file to; it replaces `path` when the block ends well, and goes if it does not."""
    with _drafting(path) as temporary:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)


@contextlib.contextmanager
def writing_once(path: Path) -> Iterator[Draft]:
    """Like `writing`, but a file that is already at `path` stays; `is_published` of the draft tells."""
    with _drafting(path) as temporary:
        draft = Draft(temporary)
        yield draft
        _flush(temporary)
        draft.is_published = _publish_once(temporary, path)


def temporary_beside(path: Path) -> Path:
    """A fresh name for a temporary file in the folder of `path`; the end of the name, and so the suffix, is kept."""
    return path.with_name(f"{TEMPORARY_PREFIX}{place()}-{os.getpid()}-{os.urandom(4).hex()}-{path.name}")


def filesystem_now(path: Path) -> float:
    """The time by the clock that stamps the files beside `path`: on NFS the server's, which may differ from ours."""
    probe = temporary_beside(path)
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def sweep(folder: Path) -> list[Path]:
    """Removes what killed processes left behind, and returns it.

    Of this host: if the process is gone. Of other hosts: if untouched for a day.
    """
    swept = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            match = _TEMPORARY_NAME.fullmatch(entry.name)
            if match is None:
                continue
            with contextlib.suppress(OSError):  # gone meanwhile, or not ours to remove
                if not _is_abandoned(entry, Process(match["place"], int(match["pid"]), None)):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    import shutil  # slow to import, and hardly ever needed

                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
                swept.append(Path(entry.path))
    return sorted(swept)


def _is_abandoned(entry: os.DirEntry[str], owner: Process) -> bool:
    if owner.place == place():
        return not is_alive(owner)
    return filesystem_now(Path(entry.path)) - entry.stat(follow_symlinks=False).st_mtime > FOREIGN_TEMPORARY_SECONDS


@contextlib.contextmanager
def cannot_write(path: Path) -> Iterator[None]:
    """Turns the system's refusals to write below `path` into `CannotWrite`."""
    try:
        yield
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> Exception:
    if error.errno not in _WAYS_OUT:
        return error
    return CannotWrite(f"cannot write {path}", found=os.strerror(error.errno), hint=_WAYS_OUT[error.errno])


@contextlib.contextmanager
def _drafting(path: Path) -> Iterator[Path]:
    """A temporary path, removed at the end whatever happens; refusals of the system become `CannotWrite`."""
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        flush_folder(path.parent)
    except OSError as error:
        # An error that names some other file is about reading, and not ours to explain.
        is_ours = error.filename is None or _is_around(Path(os.fsdecode(error.filename)), temporary)
        if not is_ours or error.errno not in _WAYS_OUT:
            raise
        raise _refusal(path, error) from error
    finally:
        with signals_held(), contextlib.suppress(OSError):  # what stays is swept
            temporary.unlink(missing_ok=True)


def _is_around(path: Path, temporary: Path) -> bool:
    """Whether a path is the temporary file or a folder above it."""
    return path == temporary or path in temporary.parents


def _publish_once(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except OSError as error:
        # NFS repeats a request whose reply was lost, and the second one finds our own link: count the links.
        if os.stat(temporary).st_nlink == 2:
            return True
        if error.errno == errno.EEXIST:
            return False
        if error.errno not in _NO_LINKS:
            raise
        return _publish_without_links(temporary, path)
    return True


def _publish_without_links(temporary: Path, path: Path) -> bool:
    """Publishes on a filesystem that has no hard links (exFAT, some FUSE mounts).

    Never torn: a rename is one step. Weaker in one way: two writers that look in the same instant both see nothing,
    both rename, and the later one stays. Ours can bear that: plans are read back and compared, blocks are equal
    whoever computes them, and a doubled claim costs time only.
    """
    if path.exists():
        return False
    os.replace(temporary, path)
    return True


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Have the names in a folder on disk."""
    try:
        _flush(folder)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
