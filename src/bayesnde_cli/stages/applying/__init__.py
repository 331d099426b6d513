"""What a fitted run is good for: new rows, outliers, classes, and the density of two columns on a grid."""

from bayesnde_cli.stages.applying.opening import Prior, PriorFactory, open_prior

__all__ = ["Prior", "PriorFactory", "open_prior"]
