"""Distributions whose exact log-density is known: to try the tool on data where the truth can be looked up.

    simulator = make_simulator("gmm", dim=15)
    for x, log_density in simulate_rows(simulator, 100_000, seed=0):
        ...

One file per family holds `sample` and `log_density` side by side. Importing this package does not import NumPy.
"""

from bayesnde_cli.data.simulators.catalogue import SIMULATORS, Family, make_simulator
from bayesnde_cli.data.simulators.simulator import Simulator
from bayesnde_cli.data.simulators.streaming import simulate_rows

__all__ = ["SIMULATORS", "Family", "Simulator", "make_simulator", "simulate_rows"]
