"""The list of simulators and the stream of their rows. NumPy is imported only when a simulator is made."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bayesnde_cli.errors import BadUsage, nearest_hint
from bayesnde_cli.rng import generator

if TYPE_CHECKING:
    import numpy as np

# 2**22 float64 values are 32 MB: a wide table gets fewer rows per chunk, up to 64 columns nothing changes.
MAX_CHUNK_VALUES = 2**22
# At 1,000 columns a rotation or a covariance is a matrix of 8 MB, and a chunk of rows stays small.
MAX_DIM = 1000


class Simulator(Protocol):
    """A distribution that can be sampled and whose log-density is exact."""

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, x1 .. xp."""

    def sample(self, n: int, rng: "np.random.Generator") -> "np.ndarray":
        """Return `n` independent rows. (n, p), float64."""

    def log_density(self, x: "np.ndarray") -> "np.ndarray":
        """Return the exact log-density of each row of `x`. (n, p) -> (n,), float64."""


class Family(NamedTuple):
    """One simulator in the list: its class in `simulators`, what it is, and the options that it takes."""

    class_name: str
    summary: str
    options: tuple[str, ...] = ()


SIMULATORS = {
    "involute": Family("Involute", "a spiral in the plane with Gaussian noise"),
    "gmm": Family(
        "IndependentMixture",
        "independent mixtures of three normals, 2 columns by default, may be rotated",
        ("dim", "rotate"),
    ),
    "linear-gaussian": Family(
        "LinearGaussian",
        "a multivariate normal made by a linear map of a normal latent, 5 columns and latent dimension 2 by default",
        ("dim", "latent_dim"),
    ),
    "moons": Family("Moons", "two interleaving half circles with Gaussian noise"),
    "checkerboard": Family("Checkerboard", "uniform on the eight dark squares of a four-by-four board"),
    "rings": Family("Rings", "three concentric circles with Gaussian noise"),
}


def make_simulator(
    name: str, *, dim: int | None = None, latent_dim: int | None = None, rotate: bool = False
) -> Simulator:
    """Return the simulator of that name. The same arguments always give the same distribution."""
    if name not in SIMULATORS:
        raise BadUsage(
            f"there is no simulator {name!r}",
            found=f"simulators: {', '.join(SIMULATORS)}",
            hint=nearest_hint(name, list(SIMULATORS), "choose one of the names above"),
        )
    for option, value in {"dim": dim, "latent_dim": latent_dim, "rotate": rotate or None}.items():
        flag = f"--{option.replace('_', '-')}"
        if value is not None and option not in SIMULATORS[name].options:
            takers = [other for other, family in SIMULATORS.items() if option in family.options]
            what, found = f"the simulator {name!r} has no option {flag}", f"{flag} belongs to: {', '.join(takers)}"
            raise BadUsage(what, found=found, hint=f"leave {flag} out")
        highest = MAX_DIM if option == "dim" else (5 if dim is None else dim)
        if value is not None and not 1 <= value <= highest:
            hint = f"choose a whole number from 1 to {highest}{', the number of columns' * (option != 'dim')}"
            raise BadUsage(f"{flag} is out of range", found=f"found {value}", hint=hint)
    from bayesnde_cli.tables import simulators

    if name == "gmm":
        return simulators.IndependentMixture(dim or 2, rotate=rotate)
    if name == "linear-gaussian":
        return simulators.LinearGaussian(dim or 5, latent_dim or min(2, dim or 5))
    simulator: Simulator = getattr(simulators, SIMULATORS[name].class_name)()
    return simulator


def simulate_rows(
    simulator: Simulator, n_rows: int, seed: int, *, chunk_rows: int = 65_536
) -> "Iterator[tuple[np.ndarray, np.ndarray]]":
    """Return chunks of rows and their exact log-densities: pairs (x, log_density) of shapes (n, p) and (n,).

    Chunk `i` is drawn in full at the address (seed, "simulate", i) and then cut, so the first 1,000 rows of a
    long simulation are the 1,000-row simulation. Another `chunk_rows` gives other rows.
    """
    if n_rows < 1:
        raise BadUsage("--rows is out of range", found=f"found {n_rows}", hint="choose 1 or more")
    return _chunks(simulator, n_rows, seed, min(chunk_rows, MAX_CHUNK_VALUES // len(simulator.names)))


def _chunks(simulator: Simulator, n_rows: int, seed: int, chunk_rows: int) -> "Iterator[tuple[np.ndarray, np.ndarray]]":
    for chunk_index, start in enumerate(range(0, n_rows, chunk_rows)):
        x = simulator.sample(chunk_rows, generator(seed, "simulate", chunk_index))  # (chunk_rows, p)
        # Before the cut: a matrix product of fewer rows may differ in the last digit.
        log_density = simulator.log_density(x)  # (chunk_rows,)
        n_kept = min(chunk_rows, n_rows - start)
        yield x[:n_kept], log_density[:n_kept]
