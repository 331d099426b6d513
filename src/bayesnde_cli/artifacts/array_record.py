"""What is known of the array job that was last written for a data set: for `status`, which must not read scripts."""

import os
from dataclasses import asdict, dataclass, fields

from bayesnde_cli.artifacts.atomic import write_json
from bayesnde_cli.artifacts.canonical import is_count, read_object
from bayesnde_cli.artifacts.layout import RunLayout, repair_hint
from bayesnde_cli.errors import BadArtifact

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ArrayRecord:
    """An array job: its name in the queue, the number of its shards, the run that its script works in."""

    job_name: str
    shards: int
    run: str  # absolute
    array_limit: int | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def gather_name(self) -> str:
        """The name of the job that puts the shards together."""
        return f"{self.job_name}-gather"

    def is_of(self, layout: RunLayout) -> bool:
        """Whether the scripts work in this very run; not those of a run that was moved or copied with them."""
        try:
            return os.path.samefile(self.run, layout.root)
        except (OSError, ValueError):
            return False


def write(layout: RunLayout, set_name: str, record: ArrayRecord) -> None:
    """Put the record of an array in place, over that of an earlier one."""
    write_json(layout.array_record_file(set_name), asdict(record))


def read(layout: RunLayout, set_name: str) -> ArrayRecord | None:
    """The record of a data set's array; None if no array was written."""
    path = layout.array_record_file(set_name)
    if not path.exists():
        return None
    found = read_object(path, newest=SCHEMA_VERSION)
    problem = _problem(found)
    if problem:
        raise BadArtifact(f"{path} is damaged", found=problem, hint=repair_hint(path))
    return ArrayRecord(**found)


def _problem(found: dict[str, object]) -> str | None:
    """What is wrong with a record read from disk, if anything."""
    names = {entry.name for entry in fields(ArrayRecord)}
    for name in sorted(names ^ found.keys()):
        return f"{name} is {'not there' if name in names else 'unknown'}"
    for name in ("job_name", "run"):
        if not isinstance(found[name], str):
            return f"{name} is {found[name]!r}"
    for name in ("shards", "array_limit"):
        value = found[name]
        if not (is_count(value) and value > 0) and not (name == "array_limit" and value is None):
            return f"{name} is {value!r}"
    return None
