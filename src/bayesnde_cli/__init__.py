"""Density estimation that can be trusted, from a table on the command line or as a scikit-learn estimator."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesnde_cli.estimator import BayesNDE, UnreliableDensity

__version__ = "0.1.0"
__all__ = ["BayesNDE", "UnreliableDensity"]


def __getattr__(name: str) -> Any:
    """The estimator is imported when it is asked for: the command line answers without scikit-learn."""
    if name not in __all__:
        raise AttributeError(f"module 'bayesnde_cli' has no attribute '{name}'")
    from bayesnde_cli import estimator

    return getattr(estimator, name)
