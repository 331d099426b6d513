"""What a process does to the files below a folder, step by step, and mishaps at one of these steps.

A step is an audit event of Python (a file opened for writing, renamed, linked, removed; a folder made or removed; a
time set), a flush to disk, or a piece of a Parquet file that is about to be written. The package knows nothing of this.
"""

import functools
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_EVENTS = ("os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate", "os.utime")
# What a full disk still allows.
FREEING = ("os.rename", "os.remove", "os.rmdir", "os.utime")


@dataclass
class Steps:
    """The steps of this process so far, each about to be done; at the `at`-th, counted from 1, something happens.

    A signal comes (9 is a kill), or the system refuses the step with an error: this one only, or, if it is lasting, all
    from here on but those that are spared.
    """

    at: int | None = None
    signal: int | None = None
    errno: int | None = None
    is_lasting: bool = False
    spared: Collection[str] = ()
    done: list[str] = field(default_factory=list)

    def before(self, step: str, path: str, *, is_named: bool) -> None:
        self.done.append(f"{step} {os.path.basename(path)}")
        n_done = len(self.done)
        if self.at is None or not (n_done == self.at or (self.is_lasting and n_done > self.at)):
            return
        if self.signal is not None:
            os.kill(os.getpid(), self.signal)
        elif self.errno is not None and step not in self.spared:
            raise OSError(self.errno, os.strerror(self.errno), *([path] if is_named else []))


def watch(folder: str, steps: Steps) -> None:
    """Have the steps of this process below `folder` told to `steps`, for the rest of its life."""

    def told(step: str, path: Any, *, is_named: bool = False) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            name = os.fsdecode(path)  # as the process calls it: errors name it so
            whole = os.path.abspath(name)
            if whole == folder or whole.startswith(folder + os.sep):
                steps.before(step, name, is_named=is_named)

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[2] & _WRITES:
            told("open", arguments[0], is_named=True)
        elif event in _EVENTS:
            told(event, arguments[0], is_named=True)

    sys.addaudithook(heard)
    _before_each_flush(told, otherwise=folder)
    _before_each_piece_of_parquet(told)


def _before_each_flush(told: Callable[..., None], *, otherwise: str) -> None:
    fsync = os.fsync

    def flush(descriptor: int) -> None:
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # no /proc
            path = otherwise
        told("os.fsync", path)
        fsync(descriptor)

    os.fsync = flush  # type: ignore[assignment]


def _before_each_piece_of_parquet(told: Callable[..., None]) -> None:
    import pyarrow.parquet as pq

    class Watched(pq.ParquetWriter):
        @functools.wraps(pq.ParquetWriter.__init__)  # type: ignore[misc]
        def __init__(self, where: Any, *args: Any, **options: Any) -> None:
            told("parquet", where)
            self._watched = where
            super().__init__(where, *args, **options)

        def write_table(self, *args: Any, **options: Any) -> None:
            told("parquet", self._watched)
            super().write_table(*args, **options)

        def close(self) -> None:
            told("parquet", self._watched)
            super().close()

    pq.ParquetWriter = Watched
