"""Controls of the fuzz campaign: readers that are broken on purpose, each in a way that the campaign must notice."""

import os
import time
import warnings
from pathlib import Path

import fuzz_readers
import numpy as np
from fuzz_cases import CRASH, HANG, OVER_MEMORY, READ, TRACEBACK, Case


def _raises(path: Path) -> None:
    path.read_bytes()[10**6]


def _warns(path: Path) -> None:
    warnings.warn("an odd file", stacklevel=1)


def _dies(path: Path) -> None:
    os.abort()


def _hangs(path: Path) -> None:
    time.sleep(3600)


def _takes_memory(path: Path) -> None:
    np.ones(400 << 20, np.uint8)


def _asks_for_the_moon(path: Path) -> None:
    np.ones(1 << 40, np.uint8)


# How each ends.
READERS = {
    "sound": (Path.read_bytes, READ),
    "raises": (_raises, TRACEBACK),
    "warns": (_warns, TRACEBACK),
    "dies": (_dies, CRASH),
    "hangs": (_hangs, HANG),
    "takes memory": (_takes_memory, OVER_MEMORY),
    "asks for the moon": (_asks_for_the_moon, OVER_MEMORY),
}


def case_of(name: str, folder: Path) -> Case:
    """Damaged CSV files for a broken reader."""
    read, _ = READERS[name]
    return Case(fuzz_readers.TARGETS["csv"], folder / "data", read)
