"""Draws on disk: a table of the draws of each block, and one of what is known of each row's chains."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from bayesnde_cli.artifacts import plan as plans
from bayesnde_cli.artifacts.blocks import publish_block, read_block
from bayesnde_cli.artifacts.environment import computing_versions, versions_text
from bayesnde_cli.artifacts.layout import RunLayout, repair_hint
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.artifacts.tables import Stamp, read_stamped, writing_table_once
from bayesnde_cli.errors import BadArtifact, MissingArtifact
from bayesnde_cli.inference.block import Draws
from bayesnde_cli.stages.reporting import Report

DIAGNOSTICS_SCHEMA, DIAGNOSTICS_VERSION = "diagnostics", 2  # 2: modes
# What the chains of a row tell, beside the draws themselves.
MODES = "modes"
_OF_CHAINS = ("acceptance", "divergences", "step_size", "n_gradients", "missed_mass")


def repeated(draws: Draws, n_real: int, n_rows: int) -> Draws:
    """The draws of the first `n_real` rows, those of the last one repeated up to `n_rows`.

    Draws that were read back then equal those just made, the rows that fill the block up included.
    """
    index = np.minimum(np.arange(n_rows), n_real - 1)
    return Draws(*(array[index] for array in draws))


class DrawStore:
    """The draws of a data set, under the plan that they belong to."""

    def __init__(self, layout: RunLayout, plan: Plan) -> None:
        self._layout, self._plan = layout, plan

    def is_of_plan(self, report: Report) -> bool:
        """Whether draws are there that belong to the plan; says so if they belong to another one, or may do."""
        path = self._layout.plan_file(self._plan.stage, self._plan.set_name)
        label = self._layout.label(self._plan.stage, self._plan.set_name)
        try:
            found = plans.read(path)
        except MissingArtifact:
            return False
        except BadArtifact as error:
            report.warn(f"{error.what}, and {label} is not used; to repair it, {error.hint}")
            return False
        if found != self._plan:
            report.note(f"{label} was made with other settings and is not used")
        return found == self._plan

    def has(self, block: int) -> bool:
        return self._layout.block_file(self._plan.stage, self._plan.set_name, block).exists()

    def read(self, block: int) -> Draws:
        """The draws of a block."""
        diagnostics, table = self.diagnostics(block), read_block(self._layout, self._plan, block)
        if MODES not in diagnostics.column_names:
            raise BadArtifact(
                f"{self._layout.label(self._plan.stage, self._plan.set_name)} was made by an older bayesnde",
                found="its diagnostics do not tell where the modes are",
                hint=f"run `{self._layout.command(self._plan.stage, self._plan.set_name, '--restart')}`",
            )
        try:
            return _draws(diagnostics, table)
        except (LookupError, ValueError, TypeError, AttributeError, ZeroDivisionError, pa.ArrowException) as error:
            path = self._layout.block_file(self._plan.stage, self._plan.set_name, block)
            found = f"it does not fit its diagnostics: {error}"
            raise BadArtifact(f"{path} is damaged", found=found, hint=repair_hint(path)) from error

    def diagnostics(self, block: int) -> pa.Table:
        """A row for each row of the block."""
        path = self._layout.diagnostics_file(self._plan.set_name, block)
        found = read_stamped(path, diagnostics_stamp(self._plan, block))
        start, stop = self._plan.rows(block)
        if found.num_rows != stop - start:
            rows = f"{found.num_rows:,} rows instead of {stop - start:,}"
            raise BadArtifact(f"{path} is damaged", found=rows, hint=repair_hint(path))
        return found

    def write(self, block: int, row_ids: np.ndarray, draws: Draws, figures: dict[str, np.ndarray]) -> None:
        """Put the draws of a block in place; all arrays may be longer than `row_ids`, by the rows that fill it up."""
        n_rows = len(row_ids)
        draws = Draws(*(array[:n_rows] for array in draws))
        diagnostics = {"row_id": row_ids} | {name: getattr(draws, name) for name in _OF_CHAINS}
        diagnostics[MODES] = _lists(draws.modes)
        table = pa.table(diagnostics | {name: values[:n_rows] for name, values in figures.items()})
        path = self._layout.diagnostics_file(self._plan.set_name, block)
        # First the diagnostics: where there is a block, there are its diagnostics.
        stamp = replace(diagnostics_stamp(self._plan, block), made_with=versions_text(computing_versions()))
        with writing_table_once(path, table.schema, stamp) as (writer, _):
            writer.write(table)
        publish_block(self._layout, self._plan, block, _draws_table(row_ids, draws.z))


def diagnostics_stamp(plan: Plan, block: int) -> Stamp:
    """The stamp that the diagnostics of a block must have."""
    return Stamp(DIAGNOSTICS_SCHEMA, DIAGNOSTICS_VERSION, plan.run_id, plan.plan_hash, block=block)


def _draws(diagnostics: pa.Table, table: pa.Table) -> Draws:
    """The draws in the two tables of a block."""
    n_chains = int(table["chain"][-1].as_py()) + 1
    n_draws = int(table["draw"][-1].as_py()) + 1
    z = table["z"].combine_chunks().flatten().to_numpy().reshape(diagnostics.num_rows, n_chains, n_draws, -1)
    modes = diagnostics[MODES].combine_chunks().flatten().to_numpy()
    n_modes = len(modes) // (z.shape[0] * z.shape[3])
    modes = modes.reshape(z.shape[0], n_modes, z.shape[3])
    return Draws(*[z, *(diagnostics[name].to_numpy() for name in _OF_CHAINS), modes])


def _lists(modes: np.ndarray) -> pa.ListArray:
    """The latents of the modes of each row, one after the other. (rows, n, d)."""
    size = modes.shape[1] * modes.shape[2]
    offsets = np.arange(len(modes) + 1, dtype=np.int32) * size
    return pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(modes).ravel()))


def _draws_table(row_ids: np.ndarray, z: np.ndarray) -> pa.Table:
    n_rows, n_chains, n_draws, n_latent = z.shape
    chain, draw = np.indices((n_chains, n_draws), np.int32).reshape(2, -1)
    return pa.table(
        {
            "row_id": np.repeat(row_ids, n_chains * n_draws),
            "chain": np.tile(chain, n_rows),
            "draw": np.tile(draw, n_rows),
            "z": pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(z).ravel()), n_latent),
        }
    )
