"""Small disks, and disks that cannot be written to: real ones, where this process may mount them."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_TOOLS = ("mount", "umount")


@contextmanager
def small_disk(place: Path, n_bytes: int) -> Iterator[None]:
    """A disk of so many bytes at `place`, with what was there on it; gone at the end."""
    if not all(map(shutil.which, _TOOLS)):
        pytest.skip("no mount on this system")
    before = place.with_name(f"{place.name} before")
    place.mkdir(exist_ok=True)
    place.rename(before)
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "bayesnde-test", str(place)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"this process may not mount: {done.stderr.strip()}")
    try:
        shutil.copytree(before, place, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def filled_up(place: Path, n_left: int) -> Iterator[None]:
    """The disk at `place` with so many bytes left."""
    ballast = place / "ballast"
    n_free = shutil.disk_usage(place).free
    ballast.write_bytes(bytes(max(0, n_free - n_left)))
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """The disk at `place`, not to be written to."""
    _remount(place, "ro")
    try:
        yield
    finally:
        _remount(place, "rw")


def _remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)
