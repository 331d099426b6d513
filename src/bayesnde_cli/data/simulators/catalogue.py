"""The list of simulators with their options, and `make_simulator`. No NumPy until one is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bayesnde_cli.config import nearest_hint
from bayesnde_cli.data.simulators.simulator import Simulator
from bayesnde_cli.errors import BadUsage

# At 1,000 columns a rotation or a covariance is a matrix of 8 MB, and a chunk of rows stays small.
MAX_DIM = 1000
DEFAULT_GMM_DIM = 2
DEFAULT_LINEAR_DIM = 5
DEFAULT_LINEAR_LATENT_DIM = 2


@dataclass(frozen=True)
class Family:
    """One simulator in the list: what it is and which options of `make_simulator` it takes."""

    summary: str
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.summary


SIMULATORS: Mapping[str, Family] = MappingProxyType(
    {
        "involute": Family("a spiral in the plane with Gaussian noise"),
        "gmm": Family(
            f"independent mixtures of three normals, {DEFAULT_GMM_DIM} columns unless told, may be rotated",
            options=("dim", "rotate"),
        ),
        "linear-gaussian": Family(
            "a multivariate normal made by a linear map of a normal latent, "
            f"{DEFAULT_LINEAR_DIM} columns and latent dimension {DEFAULT_LINEAR_LATENT_DIM} unless told",
            options=("dim", "latent_dim"),
        ),
        "moons": Family("two interleaving half circles with Gaussian noise"),
        "checkerboard": Family("uniform on the eight dark squares of a four-by-four board"),
        "rings": Family("three concentric circles with Gaussian noise"),
    }
)


def make_simulator(
    name: str, *, dim: int | None = None, latent_dim: int | None = None, rotate: bool = False
) -> Simulator:
    """The simulator of that name. The same arguments always give the same distribution."""
    _check_options(name, {"dim": dim is not None, "latent_dim": latent_dim is not None, "rotate": rotate})
    if name == "involute":
        from bayesnde_cli.data.simulators.involute import Involute

        return Involute()
    if name == "gmm":
        from bayesnde_cli.data.simulators.gmm import IndependentMixture

        return IndependentMixture(_in_range("dim", dim, DEFAULT_GMM_DIM, MAX_DIM), rotate=rotate)
    if name == "linear-gaussian":
        from bayesnde_cli.data.simulators.linear_gaussian import LinearGaussian

        p = _in_range("dim", dim, DEFAULT_LINEAR_DIM, MAX_DIM)
        return LinearGaussian(p, _in_range("latent_dim", latent_dim, min(DEFAULT_LINEAR_LATENT_DIM, p), p))
    if name == "moons":
        from bayesnde_cli.data.simulators.moons import Moons

        return Moons()
    if name == "checkerboard":
        from bayesnde_cli.data.simulators.checkerboard import Checkerboard

        return Checkerboard()
    from bayesnde_cli.data.simulators.rings import Rings

    return Rings()


def _check_options(name: str, given: Mapping[str, bool]) -> None:
    if name not in SIMULATORS:
        raise BadUsage(
            f"there is no simulator {name!r}",
            found=f"simulators: {', '.join(SIMULATORS)}",
            hint=nearest_hint(name, list(SIMULATORS), "choose one of the names above"),
        )
    for option, is_given in given.items():
        if is_given and option not in SIMULATORS[name].options:
            takers = [other for other, family in SIMULATORS.items() if option in family.options]
            raise BadUsage(
                f"the simulator {name!r} has no option {_flag(option)}",
                found=f"{_flag(option)} belongs to: {', '.join(takers)}",
                hint=f"leave {_flag(option)} out",
            )


def _in_range(option: str, value: int | None, default: int, upper: int) -> int:
    if value is None:
        return default
    if not 1 <= value <= upper:
        limit = f"{upper}, the number of columns" if option == "latent_dim" else str(upper)
        raise BadUsage(
            f"{_flag(option)} is out of range",
            found=f"found {value}",
            hint=f"choose a whole number from 1 to {limit}",
        )
    return value


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
