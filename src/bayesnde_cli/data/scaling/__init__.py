"""One-dimensional invertible maps from a column's file units to the model's space, with their exact log-slopes.

    log p_file(y) = log p_scaled(u) + sum_j log du_j/dy_j

| map | column | u |
|---|---|---|
| `Affine` | any | shifted and scaled |
| `MixtureMarginal` | continuous; lattice with wide noise | normal score under a fitted mixture |
| `LatticeMarginal` | integers with noise | normal score under smoothed frequencies |
| `CategoricalMarginal` | label codes with noise | normal score under smoothed frequencies |
| `Logit` | bytes with noise, such as pixels | logit |
"""

from typing import Any

from bayesnde_cli.data.scaling.affine import Affine, affine_from_json, fit_minmax, fit_none, fit_standard
from bayesnde_cli.data.scaling.categorical import CategoricalMarginal, categorical_from_json, fit_categorical
from bayesnde_cli.data.scaling.column_map import ColumnMap, Noise
from bayesnde_cli.data.scaling.lattice import LatticeMarginal, lattice_from_json
from bayesnde_cli.data.scaling.lattice_fit import fit_lattice
from bayesnde_cli.data.scaling.logit import Logit, logit_from_json
from bayesnde_cli.data.scaling.marginal import MixtureMarginal, fit_mixture, mixture_marginal_from_json

__all__ = [
    "Affine",
    "CategoricalMarginal",
    "ColumnMap",
    "LatticeMarginal",
    "Logit",
    "MixtureMarginal",
    "Noise",
    "fit_categorical",
    "fit_lattice",
    "fit_minmax",
    "fit_mixture",
    "fit_none",
    "fit_standard",
    "map_from_json",
]

_KINDS = {
    "affine": affine_from_json,
    "mixture": mixture_marginal_from_json,
    "lattice": lattice_from_json,
    "categorical": categorical_from_json,
    "logit": logit_from_json,
}


def map_from_json(stored: dict[str, Any]) -> ColumnMap:
    """The map that `to_json` described, with the same numbers to the last bit."""
    kind = stored.get("kind")
    if kind not in _KINDS:
        raise ValueError(f"expected a map of a kind in {', '.join(_KINDS)}, got {kind!r}")
    read: Any = _KINDS[kind]
    return read(stored)
