"""Neural densities on PyTorch, which is an extra: its packages are imported when a fit begins, not before."""

from collections.abc import Sequence
from importlib.util import find_spec

from bayesnde_cli.config import NEURAL_BASELINES
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.evaluation.baselines.fitted import FitParts, FittedParts
from bayesnde_cli.evaluation.baselines.kept import Keeper
from bayesnde_cli.evaluation.baselines.parts import Part

NEURAL = NEURAL_BASELINES
PACKAGES = ("torch", "zuko", "normflows")


def neural(name: str, *, share: float = 1.0, keeper: Keeper | None = None) -> FitParts:
    """The fit of a neural density, or of a `share` of its steps; with a keeper it goes on where it was stopped."""

    def fit(train: Part, validation: Part, seed: int) -> FittedParts:
        require_packages([name])
        from bayesnde_cli.evaluation.baselines.neural.fitting import fit_network

        return fit_network(name, train, validation, seed=seed, share=share, keeper=keeper)

    return fit


def require_packages(names: Sequence[str], option: str = "--baseline") -> None:
    """Refuse, before the long work, if neural ones are among the names and their packages are not there."""
    wanted = [name for name in names if name in NEURAL]
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if wanted and missing:
        raise BadUsage(
            f"{' '.join(f'{option} {name}' for name in dict.fromkeys(wanted))} needs packages that are not installed",
            found=f"no {', '.join(missing)}",
            hint="run `pip install 'bayesnde[baselines]'`, then the same command again",
        )
