"""From rows to log-densities: chains, proposal, bridge, and more of the same for the rows that need it.

sample   modes and chains           -> draws from the latent posterior of every row
score    proposal from the first half of each chain and from its own first draws, bridge with the second half; rows
         that miss the target are drawn and scored again with a larger budget
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bayesnde_cli.inference import chain_diagnostics, modes, proposal, sampler
from bayesnde_cli.inference.block import Draws, Rows
from bayesnde_cli.inference.bridge import bridge
from bayesnde_cli.inference.budget import EngineSettings
from bayesnde_cli.inference.resampling import resampled
from bayesnde_cli.inference.sampler import SamplerSettings
from bayesnde_cli.inference.target import Target, largest_divisor
from bayesnde_cli.inference.verdicts import RELIABLE, verdicts
from bayesnde_cli.model import random_numbers
from bayesnde_cli.model.encoder import Encoder
from bayesnde_cli.model.likelihood import DecoderLike
from bayesnde_cli.rng import derive_seed, generator

# Latents that a row may find its starts among, and cells that they are decoded to in a class, at most.
_BANK_SIZE, _BANK_CELLS = 2048, 400_000
# Where there are few latents, half of those that are no training row's are this much farther out: a mode three standard
# deviations away may hold a hundredth of a row's posterior, and that of an odd row may lie beyond six.
_FEW_LATENTS, _FARTHER = 4, (1.5, 2.25)
# The paper's starts: this far around the encoder's point.
_START_SD = 0.01
# Steps of EM.
_N_EM_STEPS = 25
# Of the first draws of a proposal, as many as this are taken by their weight to fit it again.
_N_RESAMPLED = 800
# Latents in one call of the proposal, about, and in one pass of the decoder, which makes so many cells at most.
_CALL_LATENTS = 16384
_SLICE_LATENTS, _SLICE_CELLS = 2048, 200_000
# Modes that a further try remembers, beside the places of the chains.
_N_REMEMBERED = 8
# The mixture that chains jump to: draws must not depend on how they will be scored.
_JUMP_COMPONENTS, _JUMP_REGULARISER = 5, 1e-3
# Rows that are tried again go together in blocks of this size, or of so many cells.
_SMALL_BLOCK, _SMALL_CELLS = 8, 2000
# Rows and networks are float32: a log-density is known up to this share of itself.
_ROUNDING = 2.0**-23


@dataclass(frozen=True, eq=False)
class FittedModel:
    """What is scored: a decoder z[, y] -> (mean, variance), and what helps to find its posteriors."""

    decoder: DecoderLike
    latent_dim: int
    encoder: Encoder | None = None
    n_classes: int = 0
    known_latents: np.ndarray | None = None  # (n, d) float32: of training rows
    n_columns: int = 1  # that the decoder makes: with very many, fewer rows go together
    latents_at_once: int | None = None  # that the decoder had best be given together, if that is known


class Engine:
    """Draws and scores blocks of rows; equal arguments give equal bits."""

    def __init__(self, model: FittedModel, settings: EngineSettings) -> None:
        self._model, self._settings = model, settings
        self._is_paper_start = settings.start == "encoder"
        self._bank = self._make_bank()
        self._n_starts = settings.n_starts(model.latent_dim)
        self._further: dict[int, Engine] = {}
        sampling = SamplerSettings(
            n_chains=settings.chains,
            n_warm_up=settings.warm_up,
            n_draws=settings.draws,
            n_leapfrog=settings.leapfrogs,
            is_jittered=not self._is_paper_start,
            target_acceptance=settings.target_acceptance,
        )
        self._sampling = sampling
        self._begin = _compiled(self._begun)
        self._run_segment = _compiled(sampler.segment_runner(model.decoder, sampling, model.latents_at_once))
        self._mix = _compiled(self._mixture)
        self._mix_jumps = self._mix if self._jumps_are_alike() else _compiled(self._jump_mixture)
        self._weigh = _compiled(self._log_ratios)
        self._propose = _compiled(self._proposed)

    def sample(self, rows: Rows, seed: int, places: np.ndarray | None = None) -> Draws:
        """Draws for the rows of a block; places where an earlier try has been, (rows, n, d), are not forgotten."""
        target, address = _target(rows), _address(seed)
        state, spread, found = self._begin(target, None if places is None else tf.constant(places), address)
        known = None if self._is_paper_start else modes.with_room(found.modes, _JUMP_COMPONENTS)
        settings, n_rows = self._sampling, len(rows.x)
        n_warm_up, n_draws = (-(-n // settings.transitions_per_call) for n in (settings.n_warm_up, settings.n_draws))
        segments: list[list[np.ndarray]] = []
        n_adapting = tf.constant(settings.n_adapting)
        for index in range(n_warm_up + n_draws):
            if known is not None and 0 < index == n_warm_up:
                # Jumps go as well to where the chains have been; as many draws as a proposal will be fitted to.
                n_seen = max(1, min(n_warm_up - n_warm_up // 2, n_draws // 2))
                seen = self._by_row(np.concatenate([z for z, *_ in segments[-n_seen:]]))
                known = modes.with_mixture(known, self._mix_jumps(self._padded(_flat(seen)), address))
            state, segment = self._run_segment(state, target, spread, known, address, n_adapting)
            segments.append([part.numpy() for part in segment])
        z, acceptance, divergences, n_gradients = (np.concatenate(parts) for parts in zip(*segments, strict=True))
        first = n_warm_up * settings.transitions_per_call
        kept = slice(first, first + settings.n_draws)
        n_places = 1 + self._n_starts + (0 if places is None else places.shape[1])
        spent = settings.n_chains * (1 + int(n_gradients.sum()))
        if found is not None:  # a climb is a gradient, and a slope along every latent
            spent += n_places * (int(found.n_climbs) + 1) * (1 + self._model.latent_dim)
        return Draws(
            z=np.ascontiguousarray(self._by_row(z[kept])),
            acceptance=acceptance[kept].mean(axis=0, dtype=np.float64).astype(np.float32),
            divergences=divergences[kept].sum(axis=0, dtype=np.int32),
            step_size=np.exp(state.mean_log_step.numpy()),
            n_gradients=np.full(n_rows, spent, np.int64),
            missed_mass=np.full(n_rows, np.nan, np.float32) if found is None else found.missed_mass.numpy(),
            modes=np.empty((n_rows, 0, z.shape[2]), np.float32) if found is None else modes.places(found.modes).numpy(),
        )

    def diagnostics(self, draws: Draws) -> dict[str, np.ndarray]:
        """What the chains say of themselves, the worst over the coordinates of a row."""
        return {
            "ess_min": chain_diagnostics.bulk_ess(draws.z).min(axis=1),
            "rhat_max": chain_diagnostics.rhat(draws.z).max(axis=1),
        }

    def score(self, rows: Rows, draws: Draws, seed: int, n_real: int | None = None) -> dict[str, np.ndarray]:
        """The figures of every row, after as many tries as it took; rows after the first `n_real` only fill up."""
        scores = self._scored(rows, draws, seed)
        places = _places(draws)
        for level in range(1, self._settings.escalations + 1):
            again = np.flatnonzero(~scores["reliable"][:n_real])
            if not len(again):
                break
            engine, seen = self._engine_at(level), places
            places = np.concatenate([seen, _places(draws)], axis=1)
            size = self._room(_SMALL_BLOCK, _SMALL_CELLS)
            for index, first in enumerate(range(0, len(again), size)):
                chosen = again[first : first + size]
                padded = np.resize(chosen, size)
                some = _chosen(rows, padded)
                address = derive_seed(seed, "again", level, index)
                further = engine.sample(some, address, seen[padded])
                places[chosen, seen.shape[1] :] = _places(further)[: len(chosen)]
                found = engine._scored(some, further, address)
                found["n_gradients"] += scores["n_gradients"][padded]
                found["n_likelihoods"] += scores["n_likelihoods"][padded]
                for name, values in found.items():
                    scores[name][chosen] = values[: len(chosen)]
        return scores

    def _engine_at(self, level: int) -> "Engine":
        """The engine of a further try. Programs that its budget plays no part in are ours, compiled once."""
        if level not in self._further:
            engine = Engine(self._model, self._settings.larger(level, self._model.latent_dim))
            for name in ("_run_segment", "_mix", "_mix_jumps", "_weigh", "_propose"):
                setattr(engine, name, getattr(self, name))
            self._further[level] = engine
        return self._further[level]

    def _by_row(self, z: np.ndarray) -> np.ndarray:
        """(transitions, rows times chains, d) -> (rows, chains, transitions, d)."""
        return z.reshape(len(z), -1, self._settings.chains, z.shape[2]).transpose(1, 2, 0, 3)

    def _scored(self, rows: Rows, draws: Draws, seed: int) -> dict[str, np.ndarray]:
        """One try."""
        settings, target, n_rows = self._settings, _target(rows), len(rows.x)
        half = draws.z.shape[2] // 2
        fitting, held = draws.z[:, :, :half], draws.z[:, :, half:]
        address = _address(derive_seed(seed, "proposal"))
        known = np.concatenate([_flat(fitting), draws.modes], axis=1)  # a mode that no chain has seen is not forgotten
        mixture = self._mix(self._padded(known), address)
        if settings.pilot_draws:
            pilots = self._proposals(target, mixture, settings.pilot_draws, derive_seed(seed, "pilots"))
            z, ratios = (np.concatenate(parts, axis=1) for parts in zip(*pilots, strict=True))
            known = np.concatenate([known, resampled(z, ratios, _N_RESAMPLED)], axis=1)
            mixture = self._mix(self._padded(known), address)
        chain_ratios = self._weigh(target, mixture, tf.constant(_flat(held)))
        proposed = self._proposals(target, mixture, settings.proposal_draws, derive_seed(seed, "proposed"))
        proposal_ratios = np.concatenate([ratios for _, ratios in proposed], axis=1)
        n_effective = np.minimum(chain_diagnostics.bulk_ess(held).min(axis=1), held.shape[1] * held.shape[2])
        found = bridge(chain_ratios.numpy().reshape(held.shape[:3]), proposal_ratios, n_effective)
        own = self.diagnostics(draws)
        found = found._replace(se=np.hypot(found.se, _ROUNDING * np.abs(found.log_z)))
        own["missed_mass"] = draws.missed_mass.astype(np.float64)
        verdict = verdicts(found, own, settings.target_se)
        return {
            "log_density_scaled": found.log_z,
            "mc_se": found.se,
            "log_density_is": found.log_z_is,
            "mc_se_is": found.larger_se_is,
            "overlap": found.overlap,
            **own,
            "acceptance": draws.acceptance.astype(np.float64),
            "divergences": draws.divergences.copy(),
            "bridge_iterations": found.n_iterations,
            "converged": found.is_converged,
            "reliable": verdict == RELIABLE,
            "verdict": verdict,
            "n_gradients": draws.n_gradients.copy(),
            "n_likelihoods": np.full(
                n_rows, settings.pilot_draws + settings.proposal_draws + held[0, :, :, 0].size, np.int64
            ),
        }

    def _padded(self, z: np.ndarray) -> tf.Tensor:
        """Draws to fit a mixture to, always as many, so that one program does for all: NaN is no draw. (rows, n, d)."""
        if self._is_paper_start:
            return tf.constant(z)
        settings = self._settings
        n_most = settings.chains * (settings.draws // 2) + settings.kept_modes + _N_RESAMPLED
        return tf.constant(np.pad(z, [(0, 0), (0, n_most - z.shape[1]), (0, 0)], constant_values=np.nan))

    def _proposals(
        self, target: Target, mixture: proposal.MixtureOfT, n: int, seed: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """n draws of each row's proposal in parts, each (rows, some, d) with log pi - log q there, (rows, some)."""
        n_each = self._draws_per_call(target.x.shape[0])
        for index, first in enumerate(range(0, n, n_each)):
            z, ratios = self._propose(target, mixture, _address(derive_seed(seed, index)))
            yield z.numpy()[:, : n - first], ratios.numpy()[:, : n - first]

    # What follows is compiled.

    def _begun(
        self, target: Target, places: tf.Tensor | None, seed: tf.Tensor
    ) -> tuple[sampler.ChainState, tf.Tensor, modes.Found | None]:
        """Chains at their starts, the metric of each row, and the modes if they were looked for."""
        settings, d = self._settings, self._model.latent_dim
        n_rows = target.x.shape[0]
        seeds = tf.random.split(seed, 2)
        noise = random_numbers.normal([n_rows, settings.chains, d], seeds[0])
        identity = tf.broadcast_to(tf.eye(d), [n_rows, d, d])
        found = None
        if self._is_paper_start and settings.metric == "identity":
            z, spread = self._encoded(target)[:, None, :] + _START_SD * noise, identity
        else:
            uniform = random_numbers.uniform([n_rows, self._bank.z.shape[0]], seeds[1], minval=1e-30)
            encoded = self._encoded(target)
            tried = modes.candidates(self._bank, target, encoded, self._n_starts, uniform)
            starts = tf.concat([encoded[:, None], tried], axis=1)
            found = modes.find_modes(
                self._model.decoder, target, starts, places, n_climbs=settings.climbs, n_kept=settings.kept_modes
            )
            spread = identity if settings.metric == "identity" else modes.best_spread(found.modes)
            if self._is_paper_start:
                z, found = encoded[:, None, :] + _START_SD * noise, None  # the chains do not know of them
            else:
                z = modes.spread_starts(found.modes, noise)
        first_step = settings.step_size or (0.1 if settings.metric == "identity" else 1.0) * d**-0.25
        return sampler.start(self._model.decoder, target, z, tf.fill([n_rows], first_step)), spread, found

    def _mixture(self, z: tf.Tensor, seed: tf.Tensor) -> proposal.MixtureOfT:
        """A mixture that is fitted to the draws of each row. (rows, n, d)."""
        settings = self._settings
        return proposal.fit(
            z, n_components=settings.components, n_steps=_N_EM_STEPS, regulariser=settings.regulariser,
            absolute_regulariser=settings.absolute_regulariser, seed=seed,
        )  # fmt: skip

    def _jump_mixture(self, z: tf.Tensor, seed: tf.Tensor) -> proposal.MixtureOfT:
        return proposal.fit(
            z, n_components=_JUMP_COMPONENTS, n_steps=_N_EM_STEPS, regulariser=_JUMP_REGULARISER, seed=seed
        )

    def _encoded(self, target: Target) -> tf.Tensor:
        """The encoder's point for each row; cells that are missing are what the likeliest latents make of them."""
        if self._model.encoder is None:
            return tf.zeros([target.x.shape[0], self._model.latent_dim])
        x = target.x if target.observed is None else modes.filled(self._bank, target)
        z = self._model.encoder(x, target.y).mean
        # Far outside of the data the encoder may say anything; the prior ends before that.
        return tf.where(tf.math.is_finite(z), tf.clip_by_value(z, -10.0, 10.0), tf.zeros_like(z))

    def _proposed(self, target: Target, mixture: proposal.MixtureOfT, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Some draws of the proposal, (rows, n, d), and log pi - log q there, (rows, n)."""
        n = self._draws_per_call(target.x.shape[0])
        z = proposal.draw(mixture, n, seed, **self._kernel())
        return z, self._log_ratios(target, mixture, z)

    def _log_ratios(self, target: Target, mixture: proposal.MixtureOfT, z: tf.Tensor) -> tf.Tensor:
        """log pi - log q at draws that the proposal has not seen. (rows, n, d) -> (rows, n)."""
        log_q = proposal.log_prob(mixture, z, **self._kernel())
        n_rows, n, d = z.shape
        # A slice of the draws at a time: activations that stay in the cache are computed a third faster.
        n_each = largest_divisor(n, self._in_slice() // n_rows)
        each = target.repeated(n_each)

        def log_pi(some: tf.Tensor) -> tf.Tensor:  # (rows, n_each, d)
            return tf.reshape(each.log_joint(self._model.decoder, tf.reshape(some, [-1, d])), [n_rows, n_each])

        slices = tf.transpose(tf.reshape(z, [n_rows, n // n_each, n_each, d]), [1, 0, 2, 3])
        found = tf.map_fn(log_pi, slices, fn_output_signature=tf.float64)  # (slices, rows, n_each)
        return tf.reshape(tf.transpose(found, [1, 0, 2]), [n_rows, n]) - log_q

    def _kernel(self) -> dict[str, Any]:
        return {"freedom": self._settings.freedom, "defensive_weight": self._settings.defensive_weight}

    def _draws_per_call(self, n_rows: int) -> int:
        """About _CALL_LATENTS latents, in whole slices."""
        in_slice = max(1, self._in_slice() // n_rows)
        return max(1, _CALL_LATENTS // n_rows // in_slice) * in_slice

    def _in_slice(self) -> int:
        """Latents in one pass of the decoder."""
        return self._model.latents_at_once or self._room(_SLICE_LATENTS, _SLICE_CELLS)

    def _room(self, n: int, n_cells: int) -> int:
        """So many, but no more than have this many cells."""
        return max(1, min(n, n_cells // self._model.n_columns))

    def _make_bank(self) -> modes.Bank:
        model = self._model
        size = self._room(_BANK_SIZE, _BANK_CELLS)
        rng = generator(0, "latent-bank", model.latent_dim)
        z = rng.standard_normal((size, model.latent_dim)).astype(np.float32)
        if model.latent_dim <= _FEW_LATENTS:
            for offset, factor in zip((1, 3), _FARTHER, strict=True):
                z[offset::4] *= factor
        if model.known_latents is not None:
            known = model.known_latents[: size // 2]
            z[: len(known)] = known
        return modes.bank_of(model.decoder, tf.constant(z), model.n_classes)

    def _jumps_are_alike(self) -> bool:
        """Whether jumps and proposal are fitted in the same way, by one program."""
        settings = self._settings
        own = settings.components, settings.regulariser, settings.absolute_regulariser
        return own == (_JUMP_COMPONENTS, _JUMP_REGULARISER, 0.0)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return tf.function(function, jit_compile=True, autograph=False)


def _target(rows: Rows) -> Target:
    x = rows.x if rows.observed is None else np.where(rows.observed, rows.x, 0.0).astype(np.float32)
    return Target(
        tf.constant(x),
        None if rows.observed is None else tf.constant(rows.observed),
        None if rows.y is None else tf.constant(rows.y),
    )


def _address(seed: int) -> tf.Tensor:
    return tf.constant([seed % 2**31, seed // 2**31 % 2**31], tf.int32)


def _places(draws: Draws) -> np.ndarray:
    """What a further try remembers: where chains were half-way and at the end, and the heaviest modes, visited or not.

    -> (rows, 2 chains + modes, d); what there is no mode for repeats a place.
    """
    z = draws.z
    been = np.concatenate([z[:, :, z.shape[2] // 2], z[:, :, -1]], axis=1)
    found = np.full((len(z), _N_REMEMBERED, z.shape[3]), np.nan, z.dtype)
    heaviest = draws.modes[:, :_N_REMEMBERED]
    found[:, : heaviest.shape[1]] = heaviest
    return np.concatenate([been, np.where(np.isnan(found), been[:, :1], found)], axis=1)


def _flat(z: np.ndarray) -> np.ndarray:
    """The chains of each row one after the other. (rows, chains, n, d) -> (rows, chains times n, d)."""
    return np.ascontiguousarray(z).reshape(len(z), -1, z.shape[3])


def _chosen(rows: Rows, index: np.ndarray) -> Rows:
    observed, y = (None if part is None else part[index] for part in (rows.observed, rows.y))
    return Rows(rows.x[index], observed, y)
