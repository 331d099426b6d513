"""Rows of a simulator as a stream of chunks, equal for equal seeds whatever the number of rows."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bayesnde_cli.data.simulators.simulator import Simulator
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.rng import generator

if TYPE_CHECKING:
    import numpy as np

# 2**22 float64 values are 32 MB: a wide table gets fewer rows per chunk, up to 64 columns nothing changes.
MAX_CHUNK_VALUES = 2**22


def simulate_rows(
    simulator: Simulator, n_rows: int, seed: int, *, chunk_rows: int = 65_536
) -> "Iterator[tuple[np.ndarray, np.ndarray]]":
    """Chunks of rows and their exact log-densities: pairs (x, log_density) of shapes (n, p) and (n,).

    Chunk `i` is drawn in full at the address (seed, "simulate", i) and then cut, so the first 1,000 rows of a
    long simulation are the 1,000-row simulation. Another `chunk_rows` gives other rows.
    """
    for what, count in (("--rows", n_rows), ("the number of rows per chunk", chunk_rows)):
        if count < 1:
            raise BadUsage(f"{what} is out of range", found=f"found {count}", hint="choose 1 or more")
    return _chunks(simulator, n_rows, seed, min(chunk_rows, MAX_CHUNK_VALUES // len(simulator.names)))


def _chunks(simulator: Simulator, n_rows: int, seed: int, chunk_rows: int) -> "Iterator[tuple[np.ndarray, np.ndarray]]":
    for chunk_index, start in enumerate(range(0, n_rows, chunk_rows)):
        x = simulator.sample(chunk_rows, generator(seed, "simulate", chunk_index))  # (chunk_rows, p)
        # Before the cut: a matrix product of fewer rows may differ in the last digit.
        log_density = simulator.log_density(x)  # (chunk_rows,)
        n_kept = min(chunk_rows, n_rows - start)
        yield x[:n_kept], log_density[:n_kept]
