"""Runs of the scoring stages with the stand-in for the engine: how tests start them, and look at what they left."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

import fake_engine
from bayesnde_cli.artifacts import manifest as manifests
from bayesnde_cli.artifacts import plan as plans
from bayesnde_cli.artifacts.blocks import publish_block
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.sealed import SEAL, sealed_bytes
from bayesnde_cli.artifacts.tables import write_table
from fake_engine import SMALL

# Of `evaluate`: little of what it can do.
FEW = ["--generated-rows", "200", "--typicality-rows", "100", "--no-baselines"]


def start(run: Path, *options: str, stage: str = "density", **fake: object) -> subprocess.Popen[str]:
    """A process of its own; `fake` is what the stand-in is told."""
    command = [sys.executable, fake_engine.__file__, json.dumps(fake), stage, "--run", str(run), *SMALL, *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def table_bytes(run: Path, set_name: str = "test") -> bytes:
    return (run / f"density/{set_name}/density.parquet").read_bytes()


def other_set(run: Path, stage: str = "density") -> str:
    """The one set of the run that is not `test`."""
    (name,) = [name for name in RunLayout(run).sets(stage) if name != "test"]
    return name


def as_of_before(run: Path, set_name: str = "test") -> None:
    """Make the densities of a set, complete or begun, what a bayesnde of tables of version 1 has left."""
    layout = RunLayout(run)
    path = layout.plan_file("density", set_name)
    found = json.loads(path.read_text())
    found.pop(SEAL)
    found["settings"].pop("table_version")
    path.write_bytes(sealed_bytes(found))
    plan = plans.read(path)
    for block in sorted(plans.blocks_done(layout, plan)):
        table = pq.read_table(layout.block_file("density", set_name, block)).drop_columns(["mc_se_is"])
        layout.block_file("density", set_name, block).unlink()
        publish_block(layout, plan, block, table.replace_schema_metadata(None))
    if not layout.manifest_file("density", set_name).exists():
        return
    path = layout.density_file(set_name)
    batches = pq.read_table(path).drop_columns(["mc_se_is"]).replace_schema_metadata(None).to_batches()
    path.unlink()
    write_table(path, batches, schema_name="density", schema_version=1, run_id=plan.run_id, plan_hash=plan.plan_hash)
    manifest = manifests.read(layout.manifest_file("density", set_name))
    outputs = manifests.describe_outputs(path.parent, [path.parent / name for name in manifest.outputs])
    manifests.write(layout.manifest_file("density", set_name), replace(manifest, outputs=outputs))


class Notes:
    """A report that keeps what it is told; `after_block` is called after each block of this process."""

    def __init__(self, after_block: Callable[[], None] = lambda: None) -> None:
        self.told: list[str] = []
        self._after_block = after_block

    def note(self, text: str) -> None:
        self.told.append(text)

    def warn(self, text: str) -> None:
        self.told.append(f"warning: {text}")

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        pass

    @contextmanager
    def progress(self, label: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
        yield lambda done: self._after_block() if done else None
