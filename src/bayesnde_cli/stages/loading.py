"""The fitted model of a run: the one place that reads its weights, and the densities of rows under every class.

`load_model` gives everything that reads weights. Commands look up `open_engine`, `open_prior` and `open_model` in this
module when they need them, and tests put a model with known answers in their place. Importing this module does not
import TensorFlow.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from bayesnde_cli import stopping
from bayesnde_cli.formatting import Advance
from bayesnde_cli.inference.diagnostics import Draws
from bayesnde_cli.model.backend import seed_pair
from bayesnde_cli.model.stack import ALONE, Stack
from bayesnde_cli.rng import bits_at, derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.runs.files import read_arrays, write_arrays
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.parquet_files import iter_batches
from bayesnde_cli.settings.stage_settings import DensitySettings, EvaluateSettings, PosteriorSettings

if TYPE_CHECKING:
    from bayesnde_cli.inference.class_screen import FirstLook
    from bayesnde_cli.model.likelihood import DecoderLike
    from bayesnde_cli.model.networks import NetworkSpec

# Where the arrays of the stack are in a file of weights.
_MEMBERS = "members/"
# Latents of training rows that may serve as start points for other rows.
_N_KNOWN = 1024
# Numbers in the widest layer of all images that a CPU decodes together; more would leave its cache. With this size,
# gradients of MNIST ran at 40 % of the peak of one core; with 64 images at once, at 31 % (benchmarks/images.py).
_NUMBERS_AT_ONCE = 2**18
# A row without cells has the density 1 under every class: the integral of the prior.
_OF_NO_CELLS = {"log_density_scaled": 0.0, "mc_se": 0.0, "reliable": True}
# Least number of rows in a batch for screening.
_SCREEN_ROWS = 32


class Engine(Protocol):
    """Draws from the latent posteriors of a block of rows, and scores them; equal arguments give equal bits."""

    def estimate(
        self, rows: Rows, seed: int, audited: np.ndarray | None = None, advance: Advance | None = None
    ) -> dict[str, np.ndarray]:
        """Estimates for any number of rows, by the method that the settings choose: see `inference/tiers.py`."""

    def sample(self, rows: Rows, seed: int) -> Draws: ...

    def score(self, rows: Rows, draws: Draws, seed: int, n_real: int | None = None) -> dict[str, np.ndarray]:
        """Estimates for every row; only the first `n_real` rows count, the others fill the block up."""

    def diagnostics(self, draws: Draws) -> dict[str, np.ndarray]: ...


class Opened(NamedTuple):
    """An engine and its device, such as `cpu, 2 threads`; with a condition, a screen of the classes as well."""

    engine: Engine
    device: str
    screen: "FirstLook | None" = None


EngineFactory = Callable[[RunLayout, PosteriorSettings], Opened]
ModelFactory = Callable[[RunLayout, EvaluateSettings], "Model"]


def open_engine(layout: RunLayout, settings: PosteriorSettings, *, is_verbose: bool = False) -> Opened:
    """The engine of `posterior`, `density` and `classify`."""
    scoring = settings if isinstance(settings, DensitySettings) else DensitySettings(**settings.model_dump())
    return load_model(layout, settings, is_verbose=is_verbose).engine(scoring)


def open_prior(layout: RunLayout, settings: PosteriorSettings, block_rows: int, *, is_verbose: bool = False) -> "Prior":
    """Draws from the model, for `sample` and `grid`."""
    return load_model(layout, settings, is_verbose=is_verbose).prior(block_rows)


def open_model(layout: RunLayout, settings: EvaluateSettings, *, is_verbose: bool = False) -> "Model":
    """The model as `evaluate` and the report use it."""
    return load_model(layout, settings, is_verbose=is_verbose)


@dataclass
class LazyEngine:
    """An engine that is opened when the first block needs it: combining finished blocks works without TensorFlow."""

    layout: RunLayout
    settings: PosteriorSettings
    factory: EngineFactory

    @cached_property
    def opened(self) -> Opened:
        return self.factory(self.layout, self.settings)

    @property
    def engine(self) -> Engine:
        return self.opened.engine

    @property
    def device(self) -> str:
        """The device that this process computed its blocks on."""
        return self.opened.device if "opened" in vars(self) else "none: all blocks were there"


class StoredNetworks(NamedTuple):
    """Specifications of decoder and encoder, the arrays of both, and the stack that the model is a member of."""

    decoder: "NetworkSpec"
    encoder: "NetworkSpec"
    weights: dict[str, np.ndarray]
    stack: Stack = ALONE


def read_networks(layout: RunLayout, stage: str) -> StoredNetworks:
    """The networks of a finished stage; the caller has checked the hash of the file."""
    from bayesnde_cli.model.likelihood import ColumnCells
    from bayesnde_cli.model.networks import NetworkSpec

    def spec(stored: dict[str, Any]) -> NetworkSpec:
        cells = [
            ColumnCells(**item | {end: tuple(item[end]) for end in ("lower", "upper")}) for item in stored["cells"]
        ]
        image = stored["image"] and tuple(stored["image"])
        return NetworkSpec(**stored | {"heads": tuple(stored["heads"]), "cells": tuple(cells), "image": image})

    arrays, facts = read_arrays(layout.weights_file(stage))
    weights = {name: array for name, array in arrays.items() if not name.startswith(_MEMBERS)}
    members = {name.removeprefix(_MEMBERS): array for name, array in arrays.items() if name.startswith(_MEMBERS)}
    stack = Stack.from_arrays(members, facts.get("weights", ALONE.weights))
    return StoredNetworks(spec(facts["decoder"]), spec(facts["encoder"]), weights, stack)


def write_networks(path: Path, networks: StoredNetworks, run_id: str) -> None:
    """Write the networks of a stage, with the stack that the model is a member of."""
    members, weights = networks.stack.arrays()
    facts = {"decoder": asdict(networks.decoder), "encoder": asdict(networks.encoder), "run_id": run_id}
    arrays = networks.weights | {_MEMBERS + name: array for name, array in members.items()}
    write_arrays(path, arrays, facts | {"weights": weights})


def load_model(
    layout: RunLayout, settings: PosteriorSettings | EvaluateSettings, *, is_verbose: bool = False
) -> "Model":
    """The refined model of a run, on the device and with the threads of the settings."""
    from bayesnde_cli.model.backend import load_tensorflow

    device = load_tensorflow(verbose=is_verbose, device=settings.device, threads=settings.threads).device
    return Model(layout, device, settings.typicality_draws if isinstance(settings, EvaluateSettings) else 1)


class Model:
    """The model that `refine` wrote, in the model's space; equal arguments give equal numbers.

    `y` are classes, one-hot; log-densities use `n_draws` importance draws, as the validation checks of training do.
    """

    def __init__(self, layout: RunLayout, device: str, n_draws: int) -> None:
        from bayesnde_cli.model.coders import decoder_of, encoder_of

        self._layout, self.device, self._n_draws = layout, device, n_draws
        self._networks = read_networks(layout, "refine")
        self._weights = {name: _tensor(array) for name, array in self._networks.weights.items()}
        self.decoder = decoder_of(self._networks.decoder, self._weights)
        self.encoder = encoder_of(self._networks.encoder, self._weights)
        self.stack = self._networks.stack

    @property
    def latent_dim(self) -> int:
        return self._networks.decoder.n_in

    def engine(self, settings: DensitySettings) -> Opened:
        """The engine that draws and scores, with a screen of the classes if the model has a condition.

        `settings.blur` is a share of sqrt(2 p), the root mean square distance of rows with p columns of variance 1.
        """
        from bayesnde_cli.inference.fitted_model import FittedModel
        from bayesnde_cli.inference.tiers import TieredEngine
        from bayesnde_cli.model.coders import BlurredDecoder

        assert settings.seed is not None
        spec, decoder = self._networks.decoder, self.decoder
        blur = (settings.blur or 0.0) * math.sqrt(2.0 * spec.n_out)
        seed = derive_seed(settings.seed, "posterior", "known latents")
        model = FittedModel(
            decoder=BlurredDecoder(decoder, blur) if blur else decoder,
            latent_dim=spec.n_in,
            encoder=self.encoder,
            n_classes=spec.n_classes,
            known_latents=_known_latents(self._layout, seed, spec.n_in),
            n_columns=spec.n_out,
            latents_at_once=images_at_once(spec),
        )
        screen = None
        if model.n_classes:
            from bayesnde_cli.inference.class_screen import ClassScreen

            screen = ClassScreen(model)
        engine = TieredEngine(model, settings)
        if not self.stack.mixtures:
            return Opened(engine, self.device, screen)
        from bayesnde_cli.inference.stacked import StackedEngine, stacked_look

        stack = self.stack.blur(blur) if blur else self.stack
        return Opened(StackedEngine(engine, stack), self.device, screen and stacked_look(screen, stack))

    def prior(self, block_rows: int) -> "Prior":
        """Draws in blocks of one size."""
        return Prior(self.decoder, self.latent_dim, self.stack, block_rows=block_rows)

    def simulate(self, n_rows: int, y: np.ndarray | None, seed: int) -> np.ndarray:
        """Rows of the model, (rows, p) float32."""
        from bayesnde_cli.model.likelihood import draw_rows

        rows = np.asarray(draw_rows(self.decoder, n_rows, self.latent_dim, seed_pair(seed), y=_tensor(y)))
        return self.stack.mix_rows(rows, y, seed)

    @cached_property
    def _score(self) -> Callable[..., Any]:
        from bayesnde_cli.inference.importance import marginal_scorer

        return marginal_scorer(self._networks.decoder, self._networks.encoder, n_draws=self._n_draws)

    def log_density(self, x: np.ndarray, y: np.ndarray | None, seed: int) -> np.ndarray:
        """Estimates of log p(x) by importance sampling, (rows,) float64."""
        found = np.asarray(self._score(self._weights, _tensor(x), _tensor(y), _tensor(np.int32(seed % 2**31))))
        return self.stack.add(found, Rows(x, None, y)) if self.stack.mixtures else found


class Prior:
    """Draws from a model in blocks of one size; a block is one compiled call, and its seed is an address."""

    def __init__(self, decoder: "DecoderLike", latent_dim: int, stack: Stack = ALONE, *, block_rows: int) -> None:
        import tensorflow as tf

        from bayesnde_cli.model import backend
        from bayesnde_cli.model.likelihood import draw_rows

        def rows(seed: tf.Tensor, y: tf.Tensor | None) -> tf.Tensor:
            return draw_rows(decoder, block_rows, latent_dim, seed, y=y)

        def moments(seed: tf.Tensor, y: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
            z = backend.normal([block_rows, latent_dim], seed)
            mean, variance, *_ = decoder(z) if y is None else decoder(z, y)
            return mean, variance

        self._stack = stack
        self._rows = tf.function(rows, jit_compile=True, autograph=False)
        self._moments = tf.function(moments, jit_compile=True, autograph=False)

    def rows(self, seed: int, y: np.ndarray | None = None) -> np.ndarray:
        """A block of rows x, (rows, p) float32; y (rows, classes) one-hot, for a conditional model."""
        rows = self._rows(seed_pair(seed), _tensor(y)).numpy()
        stopping.check()
        return self._stack.mix_rows(rows, y, seed)

    def moments(self, seed: int, y: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of independent columns, whose mixture is the model's density, (block, p) float32 each."""
        mean, variance = self._moments(seed_pair(seed), _tensor(y))
        stopping.check()
        return self._stack.mix_moments(mean.numpy(), variance.numpy(), y, seed)


def _tensor(array: Any) -> Any:
    import tensorflow as tf

    return None if array is None else tf.constant(array)


def images_at_once(decoder: "NetworkSpec") -> int | None:
    """How many images a CPU should decode together; None for tables, and on a GPU."""
    import tensorflow as tf

    if decoder.image is None or tf.config.get_visible_devices("GPU"):
        return None
    height, width, _ = decoder.image
    return max(1, _NUMBERS_AT_ONCE // (height * width * decoder.width))


def _known_latents(layout: RunLayout, seed: int, latent_dim: int) -> np.ndarray:
    """Latents of a random sample of training rows, (n, d) float32; the file is read in batches."""
    bits, z = np.empty(0, np.uint64), np.empty((0, latent_dim), np.float32)
    for batch in iter_batches(layout.latents_file(), "latents", ["row_id", "z_mean"]):
        bits = np.concatenate([bits, bits_at(seed, batch.column("row_id").to_numpy())])
        z = np.concatenate([z, batch.column("z_mean").flatten().to_numpy().reshape(-1, latent_dim)])
        kept = np.argsort(bits, kind="stable")[:_N_KNOWN]
        bits, z = bits[kept], z[kept]
    z = z[np.isfinite(z).all(axis=1)]
    _, first = np.unique(z, axis=0, return_index=True)  # repeated rows must not count as separate modes
    return z[np.sort(first)]


# Rows under every class: log p(x | y) for every y, whatever class a row came with


class Effort(StrEnum):
    """How much is spent on a row."""

    QUICK = "quick"  # screening decides
    USUAL = "usual"  # classes that screening leaves open are scored as by `density`
    THOROUGH = "thorough"  # every class is scored, without screening


class ByClass(NamedTuple):
    """Estimates for rows under every class, (rows, classes) each, and their cost."""

    log_density: np.ndarray  # in the model's space
    mc_se: np.ndarray
    reliable: np.ndarray  # False for a class that screening ruled out
    n_gradients: np.ndarray  # (rows,) of all classes together


def rows_at_once(block_rows: int) -> int:
    """The number of rows to hand to `score_classes`: the engine can take few, screening cannot."""
    return max(block_rows, _SCREEN_ROWS)


def score_classes(
    opened: Opened,
    rows: Rows,
    prior: np.ndarray,
    seed: int,
    *,
    block_rows: int,
    effort: Effort = Effort.USUAL,
    known: np.ndarray | None = None,
) -> ByClass:
    """Rows under every class; the engine takes `block_rows` at a time.

    After screening, the classes that may be the most probable given their `prior` (classes,) are scored by the engine
    if there are several; the others keep the estimates of the screening. Rows with missing cells are not screened. For
    images, screening may leave classes that cannot win without an estimate, except the `known` one (rows,).
    """
    if opened.screen is None or effort is Effort.THOROUGH or rows.observed is not None:
        is_wanted = np.full((len(rows), len(prior)), True)
        return ByClass(*log_densities_by_class(opened.engine, rows, is_wanted, seed, block_rows=block_rows))
    from bayesnde_cli.inference.class_screen import in_the_running

    first = opened.screen(rows.x, derive_seed(seed, "first look"), prior, known)
    is_in = in_the_running(first, prior)
    is_open = is_in.sum(axis=1, keepdims=True) > 1
    is_wanted = is_in & is_open if effort is Effort.USUAL else np.zeros_like(is_in)
    found = log_densities_by_class(opened.engine, rows, is_wanted, seed, block_rows=block_rows)
    return ByClass(
        np.where(is_wanted, found.log_density, first.log_density),
        np.where(is_wanted, found.mc_se, first.se),
        np.where(is_wanted, found.reliable, is_in & ~is_open),  # a single class left is not in doubt
        first.n_gradients + found.n_gradients,
    )


def log_densities_by_class(engine: Engine, rows: Rows, is_wanted: np.ndarray, seed: int, *, block_rows: int) -> ByClass:
    """The engine's estimates where `is_wanted` (rows, classes), and NaN and False elsewhere.

    The classes of the rows themselves play no part. The log-Jacobian, which is the same under every class, is not
    included. Rows and classes go through the engine together, in blocks of `block_rows`.
    """
    found = {
        "log_density_scaled": np.full(is_wanted.shape, np.nan),
        "mc_se": np.full(is_wanted.shape, np.nan),
        "reliable": np.full(is_wanted.shape, False),
        "n_gradients": np.zeros(is_wanted.shape, np.int64),
    }
    class_index, row_index = np.nonzero(is_wanted.T)
    for block, first in enumerate(range(0, len(row_index), block_rows)):
        positions, classes = row_index[first : first + block_rows], class_index[first : first + block_rows]
        given = replace(rows.take(positions), y=np.eye(is_wanted.shape[1], dtype=np.float32)[classes])
        figures = engine.estimate(given, derive_seed(seed, "class", block))
        for name, table in found.items():
            table[positions, classes] = figures[name][: len(positions)]
    for name, value in _OF_NO_CELLS.items():
        found[name][rows.n_observed == 0] = value
    log_density, mc_se, reliable, n_gradients = found.values()
    return ByClass(log_density, mc_se, reliable, n_gradients.sum(axis=1))
