"""One look at a scored data set: what it looked at, how it came out, and what is behind it."""

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How a check came out."""

    GOOD = 0
    FAIR = 1
    POOR = 2


class Cause(IntEnum):
    """What is behind a check that is not good, for the advice."""

    NONE = 0
    ESTIMATES = 1  # posteriors that the chains did not get right
    PRECISION = 2  # errors larger than wanted
    FIT = 3  # the model misses the shape of the data
    OVERFIT = 4  # it knows its training rows too well
    OTHER_ROWS = 5  # the rows are of another kind than those of training
    FEW = 6  # too few rows
    UNKNOWN = 7  # not looked at
    SPIKES = 8  # values that recur in continuous columns
    LINEAR = 9  # columns that others determine


@dataclass(frozen=True)
class Check:
    """One look, and what it found."""

    subject: str
    level: Level
    text: str
    cause: Cause = Cause.NONE
