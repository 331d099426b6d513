"""A stand-in for the numerical engine, and `bayesnde` with it: a fast function of a block's rows, draws and seed.

Run as `python fake_engine.py '{"dies_at": 3}' density --run r …`: the command line in a process of its own, which may
die in the middle of a block or be slow.
"""

import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bayesnde_cli import stopping
from bayesnde_cli.formatting import Advance
from bayesnde_cli.inference.diagnostics import Draws
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import FileRecord, Manifest, describe_outputs
from bayesnde_cli.settings.stage_settings import PosteriorSettings
from bayesnde_cli.stages import loading
from bayesnde_cli.stages.loading import Opened

N_LATENT = 3
_CALL_SECONDS = 0.1
# Small blocks, few draws: about eight blocks of the test rows, the last one not full.
DRAWS = ["--block-rows", "8", "--draws", "4", "--chains", "2"]
# By the bridge, so that draws on disk and draws made now give the same bits.
SMALL = [*DRAWS, "--method", "bridge"]


@dataclass
class FakeEngine:
    """Draws and figures that depend on every bit of what the engine is given."""

    config: PosteriorSettings
    dies_at: int | None = None  # in the n-th block of this process
    seconds: float = 0.0  # for each block
    n_quick: int = 0  # but for the first ones
    tells: str | None = None  # a file that gets a line for each block scored
    loses_first: bool = False  # the first row of each block has no estimate, and its chains no R-hat
    audit_gap: float = 0.0  # nats by which the audit finds other log-densities
    n_sampled: int = 0
    n_scored: int = 0
    n_real: list[int | None] = field(default_factory=list)  # of each block scored

    def sample(self, rows: Rows, seed: int) -> Draws:
        self.n_sampled += 1
        n_rows = len(rows.x)
        rng = np.random.Generator(np.random.Philox(seed))
        shape = (n_rows, self.config.chains, self.config.draws, N_LATENT)
        z = rng.normal(size=shape) + _digest(rows)[:, None, None, None]
        gradients = np.full(n_rows, self.config.draws * self.config.leapfrogs, np.int64)
        return Draws(
            z.astype(np.float32),
            rng.uniform(size=n_rows).astype(np.float32),
            rng.integers(0, 3, n_rows).astype(np.int32),
            rng.uniform(size=n_rows).astype(np.float32),
            gradients,
            rng.uniform(size=n_rows).astype(np.float32),
            rng.normal(size=(n_rows, 2, N_LATENT)).astype(np.float32),
        )

    def estimate(
        self, rows: Rows, seed: int, audited: np.ndarray | None = None, advance: Advance | None = None
    ) -> dict[str, np.ndarray]:
        """As if every other row needed no chains, whatever the method."""
        n_rows = len(rows.x)
        figures = self.score(rows, self.sample(rows, seed), seed, n_real=n_rows)
        is_quick = np.arange(n_rows) % 2 == 0
        figures["method"] = np.where(is_quick, "importance", "bridge").astype(object)
        is_audited = is_quick & (np.zeros(n_rows, bool) if audited is None else audited)
        off = figures["log_density_scaled"] + self.audit_gap
        figures["audit_log_density"] = np.where(is_audited, off, np.nan)
        figures["audit_mc_se"] = np.where(is_audited, 0.01, np.nan)
        if advance is not None:
            advance(n_rows)
        return figures

    def diagnostics(self, draws: Draws) -> dict[str, np.ndarray]:
        spread = draws.z.std(axis=(1, 2)).max(axis=1).astype(np.float64)
        rhat = 1.0 + 0.01 * spread
        rhat[:1] = np.inf if self.loses_first else rhat[:1]
        return {"ess_min": 10.0 * spread, "rhat_max": rhat}

    def score(self, rows: Rows, draws: Draws, seed: int, n_real: int | None = None) -> dict[str, np.ndarray]:
        self.n_scored += 1
        self.n_real.append(n_real)
        if self.tells is not None:
            with open(self.tells, "a") as file:
                file.write(f"{seed}\n")
        if self.n_scored > self.n_quick:
            _compute(self.seconds)
        if self.n_scored == self.dies_at:
            os._exit(9)
        rng = np.random.Generator(np.random.Philox(seed))
        n_rows = len(rows.x)
        log_density = _digest(rows) + draws.z.astype(np.float64).mean(axis=(1, 2, 3))
        # All rows of the block, those that fill it up included: a block must always be filled up in the same way.
        log_density = log_density + 1e-3 * log_density.sum() + 1e-3 * draws.z.sum(dtype=np.float64)
        log_density = log_density + 1e-3 * draws.modes.astype(np.float64).sum(axis=(1, 2))
        log_density[:1] = np.nan if self.loses_first else log_density[:1]
        reliable = rng.uniform(size=n_rows) > 0.2
        verdict = np.where(reliable, "reliable", "wide error")
        return self.diagnostics(draws) | {
            "log_density_scaled": log_density,
            "mc_se": rng.uniform(size=n_rows),
            "log_density_is": log_density + 0.25,
            "mc_se_is": rng.uniform(size=n_rows),
            "method": np.full(n_rows, "bridge", object),
            "pareto_k": np.full(n_rows, 0.25),
            "overlap": rng.uniform(size=n_rows),
            "missed_mass": draws.missed_mass.astype(np.float64),
            "acceptance": draws.acceptance.astype(np.float64),
            "divergences": draws.divergences,
            "bridge_iterations": rng.integers(1, 9, n_rows).astype(np.int32),
            "converged": reliable,
            "reliable": reliable,
            "verdict": verdict,
            "n_gradients": 2 * draws.n_gradients,
            "n_likelihoods": np.full(n_rows, 7, np.int64),
        }


def _compute(seconds: float) -> None:
    """Take this long, in short calls, after each of which a signal may stop the process."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _CALL_SECONDS))
        stopping.check()


def _digest(rows: Rows) -> np.ndarray:
    """A number for each row, (rows,) float64, that no missing cell plays a part in."""
    cells = np.where(True if rows.observed is None else rows.observed, rows.x, 0.0).astype(np.float64)
    weights = 1.0 + np.arange(cells.shape[1])
    return -((cells**2) @ weights) - (0.0 if rows.y is None else rows.y @ np.arange(rows.y.shape[1]))


def pretend_refined(run: Path, weights: bytes = b"weights") -> None:
    """Give a prepared run something that looks like the outputs of `warmstart` and `refine`."""
    layout = RunLayout(run)
    prepared = Manifest.read(layout.manifest_file("prepare"))
    record: FileRecord = {**prepared.outputs["train.parquet"], "path": "prepare/train.parquet"}
    folder = layout.stage_dir("refine")
    layout.weights_file("refine").parent.mkdir(parents=True, exist_ok=True)
    outputs = [layout.weights_file("refine"), layout.latents_file()]
    for path in outputs:
        path.write_bytes(weights)
    Manifest(
        stage="refine",
        set_name=None,
        run_id=prepared.run_id,
        identity={"weights": weights.decode()},
        config={},
        seed=0,
        inputs={"prepare/train.parquet": record},
        outputs=describe_outputs(folder, outputs),
        device="cpu",
        started="",
    ).write(layout.manifest_file("refine"))


def pretend_warmed(run: Path) -> None:
    """Give a run that pretends to be refined something that looks like the outputs of `warmstart`."""
    layout = RunLayout(run)
    shutil.copytree(layout.stage_dir("refine"), layout.stage_dir("warmstart"))
    refined = Manifest.read(layout.manifest_file("refine"))
    refined.model_copy(update={"stage": "warmstart"}).write(layout.manifest_file("warmstart"))


def install(**options: Any) -> list[FakeEngine]:
    """Have the scoring stages open fake engines; those that are opened, in a list that grows."""

    opened: list[FakeEngine] = []

    def factory(layout: RunLayout, config: PosteriorSettings, *, is_verbose: bool = False) -> Opened:
        opened.append(FakeEngine(config, **options))
        return Opened(opened[-1], "fake")

    loading.open_engine = factory  # type: ignore[assignment]
    return opened


def main() -> int:
    from bayesnde_cli.cli.main import run

    options = json.loads(sys.argv[1])
    tells_memory = options.pop("tells_memory", False)
    install(**options)
    code = run(sys.argv[2:])
    if tells_memory:
        # Not by getrusage: that begins with the memory of the process that started us.
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        print("peak, MB:", int(peak) / 1024, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
