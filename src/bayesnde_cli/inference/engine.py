"""From rows to log-densities by Markov chains and bridge sampling, in four steps:

    1. find the modes of every row's latent posterior
    2. run chains from there
    3. fit the proposal to the first half of each chain, to the modes, and to its own first draws, resampled
    4. bridge between the second half of the chains and draws of the proposal

Rows that miss the target go through all four again, with a larger budget and from the places found so far. This is the
last resort for a row: `tiers` tries cheaper methods first."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.inference import diagnostics as diagnostics_module
from bayesnde_cli.inference import hmc, importance, modes, proposal
from bayesnde_cli.inference.bridge import BRIDGE, RELIABLE, bridge, judge
from bayesnde_cli.inference.diagnostics import Draws
from bayesnde_cli.inference.modes import SearchSize
from bayesnde_cli.inference.proposal import FitSettings, MixtureOfT
from bayesnde_cli.model import backend
from bayesnde_cli.model.backend import seed_pair
from bayesnde_cli.model.coders import Encoder, Proposal
from bayesnde_cli.model.likelihood import DecoderLike, Target, largest_divisor
from bayesnde_cli.rng import derive_seed, generator
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import DensitySettings

# Budgets of further attempts as multiples of the first: warm-up, draws, pilot and proposal draws, start points. With
# the default settings, the last one is the paper's budget.
_LARGER = ((2, 2, 2, 3), (8, 4, 2, 10))
_MOST_STARTS = 100
# Share of the warm-up that tunes the step sizes; in the rest the chains settle.
_ADAPTING_SHARE = 0.8
# Pilot draws that are resampled to fit the proposal again.
N_RESAMPLED = 800
# Modes carried into the next attempt, in addition to places of the chains.
_N_CARRIED_MODES = 8
# Rows of further attempts are computed in groups of this size, or of this many cells.
_GROUP_ROWS, _GROUP_CELLS = 16, 2000
# Rows and networks are float32: this is the relative error of a log-density.
ROUNDING = 2.0**-23
# Latents in the bank that start points come from, and cells that they are decoded to in each class, at most.
_BANK_SIZE, _BANK_CELLS = 2048, 400_000
# With few latents, two quarters of the random latents of the bank are moved outwards by these factors: a mode three
# standard deviations away may hold a hundredth of a posterior, and the mode of an outlier may lie beyond six.
_FEW_LATENTS, _FARTHER = 4, (1.5, 2.25)
# The paper's start points lie around the encoder's point with this s.d.
_START_SD = 0.01
# Latents in one call of the proposal, about; in one pass of the decoder; and cells that they are decoded to, at most.
_CALL_LATENTS, _SLICE_LATENTS, _SLICE_CELLS = 16384, 2048, 200_000
# The mixture that chains jump to is fitted in one way: draws must not depend on how they will be scored.
_JUMP_FIT = FitSettings(n_components=5, regulariser=1e-3)

Scores = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class FittedModel:
    """The model to score: a decoder z[, y] -> (mean, variance), and what helps to find its posteriors."""

    decoder: DecoderLike
    latent_dim: int
    encoder: Encoder | None = None
    n_classes: int = 0
    known_latents: np.ndarray | None = None  # (n, d) float32: of training rows
    n_columns: int = 1  # of the decoder's output; with very many, fewer rows are computed together
    latents_at_once: int | None = None  # best number of latents to decode together, if known

    def limit(self, n: int, n_cells: int) -> int:
        """n, or fewer if n rows would have more than `n_cells` cells."""
        return max(1, min(n, n_cells // self.n_columns))

    @property
    def slice_latents(self) -> int:
        """Latents in one pass of the decoder."""
        return self.latents_at_once or self.limit(_SLICE_LATENTS, _SLICE_CELLS)

    def draws_per_call(self, n_rows: int) -> int:
        """Proposal draws per row in one call: about _CALL_LATENTS latents, in whole slices."""
        in_slice = max(1, self.slice_latents // n_rows)
        return max(1, _CALL_LATENTS // n_rows // in_slice) * in_slice


class Budget(NamedTuple):
    """Limits of one attempt at a row."""

    warm_up: int  # transitions per chain
    draws: int  # per chain
    pilot_draws: int
    proposal_draws: int
    search: SearchSize

    def larger(self, level: int) -> "Budget":
        """The budget of a further attempt, if this is the budget of the first."""
        warm_up, draws, proposed, starts = _LARGER[min(level, len(_LARGER)) - 1]
        search = SearchSize(min(starts * self.search.n_starts, _MOST_STARTS), n_steps=60, n_kept=48)
        pilot_draws, proposal_draws = proposed * self.pilot_draws, proposed * self.proposal_draws
        return Budget(warm_up * self.warm_up, draws * self.draws, pilot_draws, proposal_draws, search)


def first_budget(settings: DensitySettings, latent_dim: int) -> Budget:
    """The budget of the first attempt. With few latents start points are cheap, and there is room for many modes."""
    pilot_draws, proposal_draws = settings.pilot_draws or 0, settings.proposal_draws or 0
    search = SearchSize(min(15, max(7, 30 // latent_dim)), n_steps=24, n_kept=16)
    return Budget(settings.warm_up, settings.draws, pilot_draws, proposal_draws, search)


class Engine:
    """Draws and scores blocks of rows; equal arguments give equal bits."""

    def __init__(self, model: FittedModel, settings: DensitySettings) -> None:
        settings = settings.with_defaults(are_images=False)
        self._model, self._settings = model, settings
        self._budget = first_budget(settings, model.latent_dim)
        self.bank = make_bank(model)
        self.programs = build_programs(model, settings, self.bank)

    @property
    def group_rows(self) -> int:
        return self._model.limit(_GROUP_ROWS, _GROUP_CELLS)

    def sample(self, rows: Rows, seed: int) -> Draws:
        """Draws from the latent posterior of every row of a block."""
        return self._sample(rows, seed, self._budget)

    def diagnostics(self, draws: Draws) -> Scores:
        """Effective sample size and R-hat of each row, the worst over its coordinates."""
        return diagnostics_module.summarise(draws)

    def score(self, rows: Rows, draws: Draws, seed: int, n_real: int | None = None) -> Scores:
        """The columns of every row, after as many attempts as it needs; rows after the first `n_real` are padding."""
        scores = self._score(rows, draws, seed, self._budget)
        index, places = np.arange(len(rows))[:n_real], _places_to_carry(draws)[:n_real]
        size = self.group_rows
        for level in range(1, self._settings.escalations + 1):
            is_open = ~scores["reliable"][index]
            index, places = index[is_open], places[is_open]
            if not len(index):
                break
            budget, new_places = self._budget.larger(level), []
            for part, first in enumerate(range(0, len(index), size)):
                own = index[first : first + size]
                padded = first + np.resize(np.arange(len(own)), size)
                some, address = rows.take(index[padded]), derive_seed(seed, "again", level, part)
                again = self._sample(some, address, budget, places[padded])
                new_places.append(_places_to_carry(again)[: len(own)])
                attempt = self._score(some, again, address, budget)
                for name in ("n_gradients", "n_likelihoods"):
                    attempt[name] += scores[name][index[padded]]
                for name, values in attempt.items():
                    scores[name][own] = values[: len(own)]
            places = np.concatenate([places, np.concatenate(new_places)], axis=1)
        return scores

    def _sample(self, rows: Rows, seed: int, budget: Budget, carried: np.ndarray | None = None) -> Draws:
        """Steps 1 and 2, from places `carried` (rows, n, d) into this attempt as well."""
        target, address = Target.from_rows(rows), seed_pair(seed)
        starts = self.programs.start(target, None if carried is None else tf.constant(carried), address, budget.search)
        stopping.check()
        chains, step_size = self._run_chains(target, starts, address, budget)
        first = _n_calls(budget.warm_up) * hmc.TRANSITIONS_PER_CALL
        kept, d = slice(first, first + budget.draws), self._model.latent_dim
        spent = self._settings.chains * (1 + int(chains.n_gradients.sum()))
        missed_mass, found = np.full(len(rows), np.nan, np.float32), np.empty((len(rows), 0, d), np.float32)
        if starts.search is not None:
            missed_mass, found = starts.search.missed_mass.numpy(), modes.mode_places(starts.search.modes).numpy()
            n_starts = 1 + budget.search.n_starts + (0 if carried is None else carried.shape[1])
            # A Newton step takes a gradient, and a derivative along every latent.
            spent += n_starts * (int(starts.search.n_steps) + 1) * (1 + d)
        return Draws(
            z=np.ascontiguousarray(self._by_row(chains.z[kept])),
            acceptance=chains.acceptance[kept].mean(axis=0, dtype=np.float64).astype(np.float32),
            divergences=chains.divergences[kept].sum(axis=0, dtype=np.int32),
            step_size=step_size,
            n_gradients=np.full(len(rows), spent, np.int64),
            missed_mass=missed_mass,
            modes=found,
        )

    def _run_chains(
        self, target: Target, starts: "Starts", address: tf.Tensor, budget: Budget
    ) -> tuple[hmc.Segment, np.ndarray]:
        """Step 2: all transitions as arrays, warm-up included, and the step sizes after it."""
        state, search = starts.state, starts.search
        jumps = None if search is None else modes.reserve(search.modes, _JUMP_FIT.n_components)
        n_warm_up, n_draws = _n_calls(budget.warm_up), _n_calls(budget.draws)
        n_adapting = tf.constant(math.ceil(_ADAPTING_SHARE * budget.warm_up))
        segments: list[list[np.ndarray]] = []
        for index in range(n_warm_up + n_draws):
            if jumps is not None and 0 < index == n_warm_up:
                # From now on chains also jump to where they have been, fitted to as many draws as the proposal will be.
                n_seen = max(1, min(n_warm_up - n_warm_up // 2, n_draws // 2))
                seen = self._by_row(np.concatenate([z for z, *_ in segments[-n_seen:]]))
                padded = pad_draws(_flatten(seen), self.n_to_fit(budget))
                jumps = modes.add_mixture(jumps, self.programs.fit_jumps(padded, address))
            state, segment = self.programs.run_segment(state, target, starts.metric, jumps, address, n_adapting)
            segments.append([part.numpy() for part in segment])
            stopping.check()
        chains = hmc.Segment(*(np.concatenate(parts) for parts in zip(*segments, strict=True)))
        return chains, np.exp(state.mean_log_step.numpy())

    def _score(self, rows: Rows, draws: Draws, seed: int, budget: Budget) -> Scores:
        """Steps 3 and 4: fit the proposal and bridge. The columns of one attempt."""
        target = Target.from_rows(rows)
        half = draws.z.shape[2] // 2
        held = draws.z[:, :, half:]  # held-out half: the fitted half would bias the estimate
        mixture = self._fit_proposal(target, draws, seed, budget)
        chain_ratios = self.programs.log_ratios(target, mixture, tf.constant(_flatten(held)))
        stopping.check()
        proposed = self.propose(target, mixture, budget.proposal_draws, derive_seed(seed, "proposed"))
        proposal_ratios = np.concatenate([ratios for _, ratios in proposed], axis=1)
        n_effective = np.minimum(diagnostics_module.bulk_ess(held).min(axis=1), held.shape[1] * held.shape[2])
        estimate = bridge(chain_ratios.numpy().reshape(held.shape[:3]), proposal_ratios, n_effective)
        estimate = estimate._replace(se=np.hypot(estimate.se, ROUNDING * np.abs(estimate.log_z)))
        chains = self.diagnostics(draws) | {"missed_mass": draws.missed_mass.astype(np.float64)}
        verdict = judge(estimate, chains, self._settings.target_se)
        n_likelihoods = budget.pilot_draws + budget.proposal_draws + held[0, :, :, 0].size
        return {
            "method": np.full(len(rows), BRIDGE, object),
            "log_density_scaled": estimate.log_z,
            "mc_se": estimate.se,
            "pareto_k": importance.estimate(proposal_ratios).pareto_k,
            "log_density_is": estimate.log_z_is,
            "mc_se_is": estimate.larger_se_is,
            "overlap": estimate.overlap,
            **chains,
            "acceptance": draws.acceptance.astype(np.float64),
            "divergences": draws.divergences.copy(),
            "bridge_iterations": estimate.n_iterations,
            "converged": estimate.is_converged,
            "reliable": verdict == RELIABLE,
            "verdict": verdict,
            "n_gradients": draws.n_gradients.copy(),
            "n_likelihoods": np.full(len(rows), n_likelihoods, np.int64),
        }

    def _fit_proposal(self, target: Target, draws: Draws, seed: int, budget: Budget) -> MixtureOfT:
        """Step 3: fit to the first half of each chain and the modes, then once more with the proposal's pilot draws."""
        address = seed_pair(derive_seed(seed, "proposal"))
        # The paper's chains know no modes: no jumps are fitted that could share the compiled program.
        n_padded = self.n_to_fit(budget) if draws.modes.shape[1] else 0
        # With the modes: no chain may have visited some of them.
        known = np.concatenate([_flatten(draws.z[:, :, : draws.z.shape[2] // 2]), draws.modes], axis=1)
        mixture = self.programs.fit_proposal(pad_draws(known, n_padded), address)
        if budget.pilot_draws:
            pilots = self.propose(target, mixture, budget.pilot_draws, derive_seed(seed, "pilots"))
            z, ratios = (np.concatenate(parts, axis=1) for parts in zip(*pilots, strict=True))
            known = np.concatenate([known, proposal.resample(z, ratios, N_RESAMPLED)], axis=1)
            mixture = self.programs.fit_proposal(pad_draws(known, n_padded), address)
        return mixture

    def propose(
        self, target: Target, mixture: MixtureOfT, n: int, seed: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """n draws of each row's proposal in parts, each (rows, some, d) with log pi - log q there, (rows, some)."""
        n_each = self._model.draws_per_call(target.x.shape[0])
        for index, first in enumerate(range(0, n, n_each)):
            z, ratios = self.programs.propose(target, mixture, seed_pair(derive_seed(seed, index)))
            yield z.numpy()[:, : n - first], ratios.numpy()[:, : n - first]
            stopping.check()

    def _by_row(self, z: np.ndarray) -> np.ndarray:
        """(transitions, rows times chains, d) -> (rows, chains, transitions, d)."""
        return z.reshape(len(z), -1, self._settings.chains, z.shape[2]).transpose(1, 2, 0, 3)

    def n_to_fit(self, budget: Budget) -> int:
        """The largest number of draws of a row that a mixture is fitted to."""
        return self._settings.chains * (budget.draws // 2) + budget.search.n_kept + N_RESAMPLED


def _places_to_carry(draws: Draws) -> np.ndarray:
    """Start points for the next attempt: the chains half-way and at the end, and the heaviest modes, visited or not.

    Where there are fewer modes, a place of the first chain is repeated. -> (rows, 2 chains + modes, d).
    """
    z = draws.z
    visited = np.concatenate([z[:, :, z.shape[2] // 2], z[:, :, -1]], axis=1)
    heaviest = np.full((len(z), _N_CARRIED_MODES, z.shape[3]), np.nan, z.dtype)
    found = draws.modes[:, :_N_CARRIED_MODES]
    heaviest[:, : found.shape[1]] = found
    return np.concatenate([visited, np.where(np.isnan(heaviest), visited[:, :1], heaviest)], axis=1)


def _n_calls(n_transitions: int) -> int:
    return -(-n_transitions // hmc.TRANSITIONS_PER_CALL)


def _flatten(z: np.ndarray) -> np.ndarray:
    """The chains of each row one after the other. (rows, chains, n, d) -> (rows, chains times n, d)."""
    return np.ascontiguousarray(z).reshape(len(z), -1, z.shape[3])


def pad_draws(z: np.ndarray, n: int) -> tf.Tensor:
    """Pad draws to n with NaN, which fits ignore, so that one program serves all. (rows, some, d) -> (rows, n, d)."""
    return tf.constant(np.pad(z, [(0, 0), (0, max(0, n - z.shape[1])), (0, 0)], constant_values=np.nan))


# The compiled programs. Numbers that differ between budgets (start points, modes to keep) are arguments, so that a
# larger budget reuses every program it can: it is compiled again only for other shapes or other such numbers.


class Starts(NamedTuple):
    """Chains at their start points, the metric of each row, and the search for modes if chains use it."""

    state: hmc.ChainState
    metric: tf.Tensor  # (rows, d, d)
    search: modes.ModeSearch | None


class Programs(NamedTuple):
    """The compiled functions that the engine calls."""

    start: Callable[..., Starts]  # (target, carried places or None, seed, search size)
    run_segment: hmc.SegmentRunner
    fit_jumps: Callable[..., MixtureOfT]  # (draws (rows, n, d), seed)
    fit_proposal: Callable[..., MixtureOfT]
    propose: Callable[..., tuple[tf.Tensor, tf.Tensor]]  # (target, mixture, seed): draws (rows, n, d), log pi - log q
    log_ratios: Callable[..., tf.Tensor]  # (target, mixture, latents (rows, n, d)): log pi - log q (rows, n)


def compile_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one XLA program."""
    return tf.function(function, jit_compile=True, autograph=False)


def build_programs(model: FittedModel, settings: DensitySettings, bank: modes.Bank) -> Programs:
    """The programs for a model; nothing is compiled yet."""
    has_metric, is_at_modes = settings.metric != "identity", settings.start == "modes"
    proposal_fit = FitSettings(settings.components, settings.regulariser, settings.absolute_regulariser)
    kernel: dict[str, Any] = {"freedom": settings.freedom, "defensive_weight": settings.defensive_weight}

    def start(target: Target, carried: tf.Tensor | None, seed: tf.Tensor, size: SearchSize) -> Starts:
        n_rows, d = target.x.shape[0], model.latent_dim
        seeds = tf.random.split(seed, 2)
        noise = backend.normal([n_rows, settings.chains, d], seeds[0])
        encoded = encode(model, bank, target).mean
        # As in the paper, chains that start at the encoder's point do not learn about the modes.
        z, metric, known = encoded[:, None, :] + _START_SD * noise, tf.broadcast_to(tf.eye(d), [n_rows, d, d]), None
        if is_at_modes or has_metric:
            uniform = backend.uniform([n_rows, bank.z.shape[0]], seeds[1], minval=1e-30)
            candidates = modes.choose_candidates(bank, target, encoded, size.n_starts, uniform)
            places = tf.concat([encoded[:, None], candidates], axis=1)
            search = modes.find_modes(model.decoder, target, places, carried, size)
            metric = modes.metric_at_best(search.modes) if has_metric else metric
            z, known = (modes.spread_chains(search.modes, noise), search) if is_at_modes else (z, None)
        first_step = settings.step_size or (1.0 if has_metric else 0.1) * d**-0.25
        state = hmc.init(model.decoder, target, z, tf.fill([n_rows], first_step))
        return Starts(state, metric, known)

    def fit_proposal(z: tf.Tensor, seed: tf.Tensor) -> MixtureOfT:
        return proposal.fit(z, proposal_fit, seed)

    def fit_jumps(z: tf.Tensor, seed: tf.Tensor) -> MixtureOfT:
        return proposal.fit(z, _JUMP_FIT, seed)

    def log_ratios(target: Target, mixture: MixtureOfT, z: tf.Tensor) -> tf.Tensor:
        return log_joint_in_slices(model, target, z) - proposal.log_prob(mixture, z, **kernel)

    def propose(target: Target, mixture: MixtureOfT, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        z = proposal.draw(mixture, model.draws_per_call(target.x.shape[0]), seed, **kernel)
        return z, log_ratios(target, mixture, z)

    compiled_fit = compile_program(fit_proposal)
    return Programs(
        start=compile_program(start),
        run_segment=compile_program(hmc.segment_runner(model.decoder, settings, model.latents_at_once)),
        fit_jumps=compiled_fit if proposal_fit == _JUMP_FIT else compile_program(fit_jumps),
        fit_proposal=compiled_fit,
        propose=compile_program(propose),
        log_ratios=compile_program(log_ratios),
    )


def make_bank(model: FittedModel) -> modes.Bank:
    """The bank of a model: latents of training rows, and random ones."""
    size = model.limit(_BANK_SIZE, _BANK_CELLS)
    rng = generator(0, "latent-bank", model.latent_dim)
    z = rng.standard_normal((size, model.latent_dim)).astype(np.float32)
    if model.latent_dim <= _FEW_LATENTS:
        for offset, factor in zip((1, 3), _FARTHER, strict=True):
            z[offset::4] *= factor
    if model.known_latents is not None:
        known = model.known_latents[: size // 2]
        z[: len(known)] = known
    return modes.decode_bank(model.decoder, tf.constant(z), model.n_classes)


def encode(model: FittedModel, bank: modes.Bank, target: Target) -> Proposal:
    """The encoder's proposal for each row, after filling missing cells from the bank; without one, the prior."""
    if model.encoder is None:
        zeros = tf.zeros([target.x.shape[0], model.latent_dim])
        return Proposal(zeros, zeros + 1.0)
    x = target.x if target.observed is None else modes.fill_missing(bank, target)
    z, sd = model.encoder(x, target.y)
    # Far outside the data the encoder may return anything; the prior ends before that.
    z = tf.where(tf.math.is_finite(z), tf.clip_by_value(z, -10.0, 10.0), tf.zeros_like(z))
    return Proposal(z, tf.where(sd < 10.0, sd, tf.ones_like(sd)))  # False for NaN


def log_joint_in_slices(model: FittedModel, target: Target, z: tf.Tensor) -> tf.Tensor:
    """log p(x, z), (rows, n, d) -> (rows, n), in slices: activations that stay in the cache are a third faster."""
    n_rows, n, d = z.shape
    n_each = largest_divisor(n, model.slice_latents // n_rows)
    each = target.repeat(n_each)

    def log_joint(some: tf.Tensor) -> tf.Tensor:  # (rows, n_each, d)
        return tf.reshape(each.log_joint(model.decoder, tf.reshape(some, [-1, d])), [n_rows, n_each])

    slices = tf.transpose(tf.reshape(z, [n_rows, n // n_each, n_each, d]), [1, 0, 2, 3])
    values = tf.map_fn(log_joint, slices, fn_output_signature=tf.float64)  # (slices, rows, n_each)
    return tf.reshape(tf.transpose(values, [1, 0, 2]), [n_rows, n])
