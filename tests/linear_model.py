"""A model for which everything is known: x given z and y is N(W z + b + y s, diag v), so x given y is normal, too.

It stands in for the fitted decoder (draws from the model) and for the engine (log-densities), in the model's space.
Run as `python linear_model.py sample 5 --run r …`: the command line with it, in a process of its own.
"""

import sys
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.stats import multivariate_normal

from bayesnde_cli.formatting import Advance
from bayesnde_cli.inference.diagnostics import Draws
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import PosteriorSettings
from bayesnde_cli.stages import loading
from bayesnde_cli.stages.loading import Opened


@dataclass(frozen=True)
class LinearModel:
    """`weights` (p, d), `offset` (p,), `variance` (p,), and a shift of all columns for each class, (classes,)."""

    weights: np.ndarray
    offset: np.ndarray
    variance: np.ndarray
    shifts: np.ndarray = field(default_factory=lambda: np.zeros(1))

    @cached_property
    def covariance(self) -> np.ndarray:
        return self.weights @ self.weights.T + np.diag(self.variance)

    def mean(self, class_index: int = 0) -> np.ndarray:
        return self.offset + self.shifts[class_index]

    def log_density(self, x: np.ndarray, columns: list[int], class_index: int = 0) -> np.ndarray:
        """log p of some columns, x (…, columns), all others integrated out."""
        covariance = self.covariance[np.ix_(columns, columns)]
        return np.asarray(multivariate_normal(self.mean(class_index)[columns], covariance).logpdf(x))


@dataclass
class LinearPrior:
    """Draws from a linear model, as `Prior` makes them from the decoder."""

    model: LinearModel
    block_rows: int

    def rows(self, seed: int, y: np.ndarray | None = None) -> np.ndarray:
        mean, variance = self.moments(seed, y)
        noise = np.random.Generator(np.random.Philox(seed + 1)).standard_normal(mean.shape)
        return (mean + np.sqrt(variance) * noise).astype(np.float32)

    def moments(self, seed: int, y: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        model = self.model
        z = np.random.Generator(np.random.Philox(seed)).standard_normal((self.block_rows, model.weights.shape[1]))
        shift = 0.0 if y is None else (y @ model.shifts)[:, None]
        mean = z @ model.weights.T + model.offset + shift
        return mean.astype(np.float32), np.broadcast_to(model.variance, mean.shape).astype(np.float32)


@dataclass
class LinearEngine:
    """The exact log-densities of a linear model, missing cells integrated out; `lost` classes have no estimate."""

    model: LinearModel
    lost: tuple[int, ...] = ()
    doubtful: tuple[int, ...] = ()  # classes whose estimates are not reliable
    n_scored: int = 0

    def sample(self, rows: Rows, seed: int) -> Draws:
        empty, zeros = np.zeros((len(rows.x), 1, 1, 1), np.float32), np.zeros(len(rows.x))
        return Draws(empty, zeros, zeros, zeros, zeros, zeros, empty[:, 0])

    def diagnostics(self, draws: Draws) -> dict[str, np.ndarray]:
        return {name: np.ones(len(draws.z)) for name in ("ess_min", "rhat_max")}

    def estimate(
        self, rows: Rows, seed: int, audited: np.ndarray | None = None, advance: Advance | None = None
    ) -> dict[str, np.ndarray]:
        return self.score(rows, self.sample(rows, seed), seed)

    def score(self, rows: Rows, draws: Draws, seed: int, n_real: int | None = None) -> dict[str, np.ndarray]:
        self.n_scored += 1
        n_rows = len(rows.x)
        classes = np.zeros(n_rows, int) if rows.y is None else rows.y.argmax(axis=1)
        observed = np.ones(rows.x.shape, bool) if rows.observed is None else rows.observed
        log_density = np.zeros(n_rows)
        for index in range(n_rows):
            columns = np.flatnonzero(observed[index]).tolist()
            if columns:
                log_density[index] = self.model.log_density(rows.x[index, columns], columns, classes[index])
        log_density[np.isin(classes, self.lost)] = np.nan
        reliable = ~np.isin(classes, [*self.lost, *self.doubtful])
        return {
            "log_density_scaled": log_density,
            "mc_se": 0.01 * (1.0 + classes),
            "reliable": reliable,
            "n_gradients": np.full(len(log_density), 9),
        }


# For the run that the fixture `fitted` makes: three features, two classes.
OF_FITTED = LinearModel(
    weights=np.array([[0.8, 0.1], [-0.5, 0.6], [0.3, 0.4]]),
    offset=np.array([0.1, -0.2, 0.0]),
    variance=np.array([0.3, 0.2, 0.5]),
    shifts=np.array([-0.5, 0.7]),
)


def install(model: LinearModel = OF_FITTED) -> list[LinearPrior | LinearEngine]:
    """Have the commands open the model; what they open, in a list that grows."""

    opened: list[LinearPrior | LinearEngine] = []

    def prior(
        layout: RunLayout, config: PosteriorSettings, block_rows: int, *, is_verbose: bool = False
    ) -> LinearPrior:
        opened.append(LinearPrior(model, block_rows))
        return opened[-1]  # type: ignore[return-value]

    def engine(layout: RunLayout, config: PosteriorSettings, *, is_verbose: bool = False) -> Opened:
        opened.append(LinearEngine(model))
        return Opened(opened[-1], "fake")  # type: ignore[arg-type]

    loading.open_prior, loading.open_engine = prior, engine  # type: ignore[assignment]
    return opened


if __name__ == "__main__":
    from bayesnde_cli.cli.main import run

    install()
    sys.exit(run(sys.argv[1:]))
