"""What an arm came to: `result.json`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bayesnde_cli.artifacts import atomic
from bayesnde_cli.artifacts.canonical import read_object
from bayesnde_cli.errors import BadArtifact

RESULT_SCHEMA, RESULT_VERSION = "experiment_result", 1


@dataclass(frozen=True)
class Result:
    """The figures of one arm, and all that it takes to have them again."""

    experiment: str  # whose folder it lies in
    method: str  # a recipe of ours, or a competitor
    is_own: bool
    seed: int
    settings: list[str]  # of the user: `stage.key=value`, beside those of the recipe
    test_rows: int | None  # at most; None: all
    figures: dict[str, Any]
    chosen: dict[str, Any]  # what validation rows have chosen
    rows_sha256: str  # of training, validation and evaluated rows with all that is known of them
    seconds_fit: float
    seconds_score: float
    device: str
    ended: str
    version: str
    schema: str = RESULT_SCHEMA
    schema_version: int = RESULT_VERSION

    @property
    def key(self) -> tuple[str, str, int]:
        return self.experiment, self.method, self.seed

    @property
    def fit(self) -> tuple[str, str, int, str]:
        """What tells a fit from all others, those of the same arm too."""
        return *self.key, self.ended

    @property
    def seconds(self) -> float:
        return self.seconds_fit + self.seconds_score

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def write_result(path: Path, result: Result) -> None:
    atomic.write_json(path, result.as_dict())


def read_result(path: Path) -> Result:
    """The result of an arm."""
    return result_from(read_object(path, newest=RESULT_VERSION), path)


def result_from(found: Mapping[str, Any], path: Path) -> Result:
    """A result as JSON keeps it."""
    wanted = {item.name: item.type for item in fields(Result)}
    if set(found) != set(wanted) or found["schema"] != RESULT_SCHEMA or not _is_typed(found):
        raise BadArtifact(
            f"{path} is no result of an experiment",
            found=f"fields: {', '.join(map(str, sorted(found)))}",
            hint="remove it and run the experiment again",
        )
    return Result(**found)


def _is_typed(found: Mapping[str, Any]) -> bool:
    """Whether all fields are of their types, as far as others rely on them."""
    kinds: dict[type | tuple[type, ...], tuple[str, ...]] = {
        str: ("experiment", "method", "rows_sha256", "device", "ended", "version"),
        bool: ("is_own",),
        int: ("seed",),
        (int, type(None)): ("test_rows",),
        (int, float): ("seconds_fit", "seconds_score"),
        list: ("settings",),
        dict: ("figures", "chosen"),
    }
    return (
        all(isinstance(found[name], kind) for kind, names in kinds.items() for name in names)
        and isinstance(found["figures"].get("n"), int)
        and _are_figures(found["figures"])
    )


def _are_figures(figures: Mapping[str, Any]) -> bool:
    """Whether all are numbers, or None, or figures once more."""
    return all(
        _are_figures(value) if isinstance(value, dict) else value is None or isinstance(value, int | float)
        for value in figures.values()
    )
