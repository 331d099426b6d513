"""Every mistake that a user can meet: what happened, what was found, the way out.

An error prints as

    error: density/test is missing or incomplete
      no run/density/test/manifest.json
    hint: run `bayesnde density`

The class decides the exit code. Any exception that is neither a `BayesndeError` nor `Stopped` is a bug and keeps its
traceback.
"""

import difflib
from collections.abc import Sequence

EXIT_CODES: dict[int, str] = {
    0: "done",
    1: "a bug in bayesnde (with its traceback)",
    2: "wrong usage or bad input",
    3: "a stage's input is missing or stale",
    4: "numerical failure",
    5: "a --require was not met",
    75: "stopped by a signal after saving; run again to resume",
}

LONGEST_LINE = 2000  # characters of a line of a message: names may be of any length


def escaped(text: str, keep: str = "") -> str:
    """The text with control characters spelled out, so that no cell or column name can steer a terminal."""
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """The text as one line, cut to a length: no name or cell can begin a line of its own, or fill the screen."""
    line = escaped(text[: longest + 1])
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def nearest(word: str, words: Sequence[str]) -> str | None:
    """The known word that the user probably meant."""
    matches = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return matches[0] if matches else None


def nearest_hint(word: str, words: Sequence[str], otherwise: str) -> str:
    """A hint that names the nearest known word, or the other hint if none is near."""
    match = nearest(word, words)
    return f"did you mean '{match}'?" if match else otherwise


class BayesndeError(Exception):
    """A mistake with a message in three parts: what, found, way out. Each is a line, `found` may be several."""

    exit_code = 2

    def __init__(self, what: str, *, found: str | Sequence[str] = (), hint: str) -> None:
        self.what = one_line(what)
        self.found = tuple(one_line(line) for line in ((found,) if isinstance(found, str) else found))
        self.hint = one_line(hint)
        super().__init__(str(self))

    def __str__(self) -> str:
        return "\n".join([f"error: {self.what}", *(f"  {line}" for line in self.found), f"hint: {self.hint}"])


class BadUsage(BayesndeError):
    """The command line asks for something impossible."""


class BadConfig(BayesndeError):
    """A setting is unknown, of the wrong type or out of range."""


class BadInput(BayesndeError):
    """The user's data cannot be used as they are."""


class CannotWrite(BayesndeError):
    """A file cannot be written: no space, no permission, not a folder."""


class SettingsDiffer(BayesndeError):
    """A finished stage was made with other settings or data."""


class StageBusy(BayesndeError):
    """Another process works on the same stage."""

    exit_code = 3


class MissingArtifact(BayesndeError):
    """A stage's input does not exist."""

    exit_code = 3


class StaleArtifact(BayesndeError):
    """A stage's input changed after it was made."""

    exit_code = 3


class BadArtifact(BayesndeError):
    """A file of the run directory is damaged, foreign, or of another version."""

    exit_code = 3


class NumericalFailure(BayesndeError):
    """A computation left the range of finite numbers."""

    exit_code = 4


class RequirementNotMet(BayesndeError):
    """A value failed a --require."""

    exit_code = 5


class Stopped(BaseException):
    """A signal asked this process to stop; finished work is saved.

    Not an `Exception`: code that catches every failure must not hide it.
    """

    exit_code = 75

    def __init__(self, signal_name: str) -> None:
        super().__init__(signal_name)
        self.found = "nothing half-written was left behind"

    def __str__(self) -> str:
        hint = "run the same command again to resume"
        return str(BayesndeError(f"stopped by {self.args[0]}", found=self.found, hint=hint))


class OutputClosed(Exception):
    """The reader of standard output has gone, as `| head` does: the command ends quietly, with exit code 0."""


def unknown_word(
    what: str, word: str, known: Sequence[str], *, label: str, otherwise: str, error: type[BayesndeError] = BadUsage
) -> BayesndeError:
    """For a word that is not one of the known ones, which are listed; the hint names the nearest, if one is near."""
    return error(what, found=f"{label}: {', '.join(known)}", hint=nearest_hint(word, known, otherwise))


def bad_choice(option: str, value: str, choices: Sequence[str], error: type[BayesndeError] = BadUsage) -> BayesndeError:
    """For an option whose value is not one of its choices."""
    what, otherwise = f"{option} cannot be '{value}'", "use one of the choices"
    return unknown_word(what, value, choices, label="choices", otherwise=otherwise, error=error)
