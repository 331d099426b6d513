"""One look at a scored data set: what it looked at, how it came out, and what is behind it."""

from dataclasses import dataclass
from enum import Flag, IntEnum, auto


class Level(IntEnum):
    """How a check came out."""

    GOOD = 0
    FAIR = 1
    POOR = 2


class Cause(Flag):
    """What is behind a check that is not good, for the advice."""

    NONE = 0
    ESTIMATES = auto()  # posteriors that the chains did not get right
    PRECISION = auto()  # errors larger than wanted
    FIT = auto()  # the model misses the shape of the data
    OVERFIT = auto()  # it knows its training rows too well
    OTHER_ROWS = auto()  # the rows are of another kind than those of training
    FEW = auto()  # too few rows
    UNKNOWN = auto()  # not looked at
    SPIKES = auto()  # values that recur in continuous columns
    LINEAR = auto()  # columns that others determine
    OUTLIERS = auto()  # labelled outliers that are not rare


@dataclass(frozen=True)
class Check:
    """One look, and what it found."""

    subject: str
    level: Level
    text: str
    cause: Cause = Cause.NONE
