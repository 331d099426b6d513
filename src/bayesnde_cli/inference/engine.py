"""From rows to log-densities by Markov chains and bridge sampling, in four steps:

    1. find the modes of every row's latent posterior
    2. run chains from there
    3. fit the proposal to the first half of each chain, to the modes, and to its own first draws, resampled
    4. bridge between the second half of the chains and draws of the proposal

Rows that miss the target go through all four again, with a larger budget and from the places found so far. This is the
last resort for a row: `tiers` tries cheaper methods first."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.inference import diagnostics as diagnostics_module
from bayesnde_cli.inference import hmc, importance, modes, proposal
from bayesnde_cli.inference.bridge import BRIDGE, RELIABLE, bridge, judge
from bayesnde_cli.inference.diagnostics import Draws
from bayesnde_cli.inference.fitted_model import FittedModel, Program
from bayesnde_cli.inference.mode_search import ModeFinder, SearchSize, split
from bayesnde_cli.inference.modes import Modes
from bayesnde_cli.inference.proposal import FitSettings, MixtureOfT
from bayesnde_cli.model import backend
from bayesnde_cli.model.backend import seed_pair
from bayesnde_cli.model.likelihood import Target
from bayesnde_cli.model.stack import allowed_error
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import DensitySettings

# Budgets of further attempts as multiples of the first: warm-up, draws, pilot and proposal draws, start points. With
# the default settings, the last one is the paper's budget.
_LARGER = ((2, 2, 2, 3), (8, 4, 2, 10))
_MOST_STARTS = 100
# Share of the warm-up that tunes the step sizes; in the rest the chains settle.
_ADAPTING_SHARE = 0.8
# Pilot draws that are resampled to fit the proposal again.
_N_RESAMPLED = 800
# Modes carried into the next attempt, in addition to places of the chains.
_N_CARRIED_MODES = 8
# Rows that are bridged together: the smallest of these sizes that holds them, or of this many cells.
_GROUPS, _GROUP_CELLS = (2, 16), 2000
# Rows and networks are float32: this is the relative error of a log-density.
ROUNDING = 2.0**-23
# An estimate that fails a check is taken to be off by this many nats. That is good enough only for rows of which
# closed-form members hold nearly all of the density.
UNSOUND_SE = 10.0
# The paper's start points lie around the encoder's point with this s.d.
_START_SD = 0.01
# The mixture that chains jump to is fitted in one way: draws must not depend on how they will be scored.
_JUMP_FIT = FitSettings(n_components=5, regulariser=1e-3)

Scores = dict[str, np.ndarray]


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
        search = SearchSize((min(starts * sum(self.search.n_starts), _MOST_STARTS),), n_steps=60, n_kept=48)
        pilot_draws, proposal_draws = proposed * self.pilot_draws, proposed * self.proposal_draws
        return Budget(warm_up * self.warm_up, draws * self.draws, pilot_draws, proposal_draws, search)


def first_budget(settings: DensitySettings, latent_dim: int) -> Budget:
    """The budget of the first attempt. With few latents start points are cheap, and there is room for many modes."""
    pilot_draws, proposal_draws = settings.pilot_draws or 0, settings.proposal_draws or 0
    search = SearchSize((min(15, max(7, 30 // latent_dim)),), n_steps=24, n_kept=16)
    return Budget(settings.warm_up, settings.draws, pilot_draws, proposal_draws, search)


class Engine:
    """Draws and scores blocks of rows; equal arguments give equal bits."""

    def __init__(self, model: FittedModel, settings: DensitySettings) -> None:
        settings = settings.with_defaults(are_images=False)
        self._model, self._settings = model, settings
        self._budget = first_budget(settings, model.latent_dim)
        self.finder = ModeFinder(model)
        self.programs = build_programs(model, settings)

    def groups(self, index: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Positions of rows in groups that are bridged together, each as it is and repeated up to a compiled size."""
        return split(index, [self._model.limit(size, _GROUP_CELLS) for size in _GROUPS])

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
        for level in range(1, self._settings.escalations + 1):
            is_open = ~scores["reliable"][index]
            index, places = index[is_open], places[is_open]
            if not len(index):
                break
            budget, new_places = self._budget.larger(level), []
            for part, (group, padded) in enumerate(self.groups(np.arange(len(index)))):
                some, address = rows.take(index[padded]), derive_seed(seed, "again", level, part)
                again = self._sample(some, address, budget, places[padded])
                new_places.append(_places_to_carry(again)[: len(group)])
                attempt = self._score(some, again, address, budget)
                for name in ("n_gradients", "n_likelihoods"):
                    attempt[name] += scores[name][index[padded]]
                for name, values in attempt.items():
                    scores[name][index[group]] = values[: len(group)]
            places = np.concatenate([places, np.concatenate(new_places)], axis=1)
        return scores

    def target_se(self, rows: Rows, log_density: np.ndarray) -> np.ndarray:
        """The error that is good enough for each row: larger where closed-form members have most of the density."""
        target = self._settings.target_se
        return (
            np.full(len(rows), target) if rows.log_rest is None else allowed_error(target, log_density, rows.log_rest)
        )

    def _sample(self, rows: Rows, seed: int, budget: Budget, carried: np.ndarray | None = None) -> Draws:
        """Steps 1 and 2, from places `carried` (rows, n, d) into this attempt as well."""
        target, address, d = Target.from_rows(rows), seed_pair(seed), self._model.latent_dim
        missed_mass, places = np.full(len(rows), np.nan, np.float32), np.empty((len(rows), 0, d), np.float32)
        spent, known = np.zeros(len(rows), np.int64), None
        is_at_modes = self._settings.start == "modes"
        if is_at_modes or self._settings.metric != "identity":
            found = self.finder.find(rows, budget.search, derive_seed(seed, "modes"), carried)
            known, encoded, spent = found.modes, found.proposal.mean, found.n_gradients
            if is_at_modes:
                missed_mass, places = found.missed_mass, modes.mode_places(known)
        else:
            encoded = self.finder.look_up(rows)[0].mean
        starts = self.programs.begin(target, encoded, known, address)
        stopping.check()
        # As in the paper, chains that start at the encoder's point do not learn about the modes.
        chains, step_size = self._run_chains(target, starts, known if is_at_modes else None, address, budget)
        first = _n_calls(budget.warm_up) * hmc.TRANSITIONS_PER_CALL
        kept = slice(first, first + budget.draws)
        return Draws(
            z=np.ascontiguousarray(self._by_row(chains.z[kept])),
            acceptance=chains.acceptance[kept].mean(axis=0, dtype=np.float64).astype(np.float32),
            divergences=chains.divergences[kept].sum(axis=0, dtype=np.int32),
            step_size=step_size,
            n_gradients=spent + self._settings.chains * (1 + int(chains.n_gradients.sum())),
            missed_mass=missed_mass,
            modes=places,
        )

    def _run_chains(
        self, target: Target, starts: "Starts", known: Modes | None, address: tf.Tensor, budget: Budget
    ) -> tuple[hmc.Segment, np.ndarray]:
        """Step 2: all transitions as arrays, warm-up included, and the step sizes after it."""
        state, metric = starts
        jumps = None if known is None else modes.reserve(known, _JUMP_FIT.n_components)
        n_warm_up, n_draws = _n_calls(budget.warm_up), _n_calls(budget.draws)
        n_adapting = tf.constant(math.ceil(_ADAPTING_SHARE * budget.warm_up))
        segments: list[list[np.ndarray]] = []
        for index in range(n_warm_up + n_draws):
            if jumps is not None and 0 < index == n_warm_up:
                # From now on chains also jump to where they have been, fitted to as many draws as the proposal will be.
                n_seen = max(1, min(n_warm_up - n_warm_up // 2, n_draws // 2))
                seen = self._by_row(np.concatenate([z for z, *_ in segments[-n_seen:]]))
                padded = _pad_draws(_flatten(seen), self._n_to_fit(budget))
                jumps = modes.add_mixture(jumps, self.programs.fit_jumps(padded, address))
            state, segment = self.programs.run_segment(state, target, metric, jumps, address, n_adapting)
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
        target_se = self.target_se(rows, estimate.log_z)
        verdict = judge(estimate, chains, target_se)
        is_small = (verdict != RELIABLE) & is_negligible(estimate.log_z, estimate.se, target_se) & estimate.is_converged
        estimate = estimate._replace(se=np.where(is_small, np.maximum(estimate.se, UNSOUND_SE), estimate.se))
        verdict[is_small] = RELIABLE
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
        n_padded = self._n_to_fit(budget) if draws.modes.shape[1] else 0
        # With the modes: no chain may have visited some of them.
        known = np.concatenate([_flatten(draws.z[:, :, : draws.z.shape[2] // 2]), draws.modes], axis=1)
        mixture = self.programs.fit_proposal(_pad_draws(known, n_padded), address)
        if budget.pilot_draws:
            pilots = self.propose(target, mixture, budget.pilot_draws, derive_seed(seed, "pilots"))
            z, ratios = (np.concatenate(parts, axis=1) for parts in zip(*pilots, strict=True))
            known = np.concatenate([known, proposal.resample(z, ratios, _N_RESAMPLED)], axis=1)
            mixture = self.programs.fit_proposal(_pad_draws(known, n_padded), address)
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

    def _n_to_fit(self, budget: Budget) -> int:
        """The largest number of draws of a row that a mixture is fitted to."""
        return self._settings.chains * (budget.draws // 2) + budget.search.n_kept + _N_RESAMPLED


def is_negligible(log_density: np.ndarray, se: np.ndarray, target_se: np.ndarray) -> np.ndarray:
    """Which estimates are good enough even if they fail every check, (rows,) bool."""
    return np.isfinite(log_density) & (np.maximum(se, UNSOUND_SE) <= target_se)


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


def _pad_draws(z: np.ndarray, n: int) -> tf.Tensor:
    """Pad draws to n with NaN, which fits ignore, so that one program serves all. (rows, some, d) -> (rows, n, d)."""
    return tf.constant(np.pad(z, [(0, 0), (0, max(0, n - z.shape[1])), (0, 0)], constant_values=np.nan))


# The compiled programs. Numbers that differ between budgets (start points, modes to keep) are arguments, so that a
# larger budget reuses every program it can: it is compiled again only for other shapes or other such numbers.


class Starts(NamedTuple):
    """Chains at their start points, and the metric of each row."""

    state: hmc.ChainState
    metric: tf.Tensor  # (rows, d, d)


class Programs(NamedTuple):
    """The compiled functions that the engine calls."""

    begin: Callable[..., Starts]  # (target, the encoder's points (rows, d), modes or None, seed)
    run_segment: hmc.SegmentRunner
    fit_jumps: Callable[..., MixtureOfT]  # (draws (rows, n, d), seed)
    fit_proposal: Callable[..., MixtureOfT]
    propose: Callable[..., tuple[tf.Tensor, tf.Tensor]]  # (target, mixture, seed): draws (rows, n, d), log pi - log q
    log_ratios: Callable[..., tf.Tensor]  # (target, mixture, latents (rows, n, d)): log pi - log q (rows, n)


def build_programs(model: FittedModel, settings: DensitySettings) -> Programs:
    """The programs for a model; nothing is compiled yet."""
    has_metric, is_at_modes = settings.metric != "identity", settings.start == "modes"
    proposal_fit = FitSettings(settings.components, settings.regulariser, settings.absolute_regulariser)
    kernel: dict[str, Any] = {"freedom": settings.freedom, "defensive_weight": settings.defensive_weight}

    def begin(target: Target, encoded: tf.Tensor, known: Modes | None, seed: tf.Tensor) -> Starts:
        n_rows, d = target.x.shape[0], model.latent_dim
        noise = backend.normal([n_rows, settings.chains, d], seed)
        z, metric = encoded[:, None, :] + _START_SD * noise, tf.broadcast_to(tf.eye(d), [n_rows, d, d])
        if known is not None:
            metric = modes.metric_at_best(known) if has_metric else metric
            z = modes.spread_chains(known, noise) if is_at_modes else z
        first_step = settings.step_size or (1.0 if has_metric else 0.1) * d**-0.25
        return Starts(hmc.init(model.decoder, target, z, tf.fill([n_rows], first_step)), metric)

    def fit_proposal(z: tf.Tensor, seed: tf.Tensor) -> MixtureOfT:
        return proposal.fit(z, proposal_fit, seed)

    def fit_jumps(z: tf.Tensor, seed: tf.Tensor) -> MixtureOfT:
        return proposal.fit(z, _JUMP_FIT, seed)

    def log_ratios(target: Target, mixture: MixtureOfT, z: tf.Tensor) -> tf.Tensor:
        return model.log_joint(target, z) - proposal.log_prob(mixture, z, **kernel)

    def propose(target: Target, mixture: MixtureOfT, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        z = proposal.draw(mixture, model.draws_per_call(target.x.shape[0]), seed, **kernel)
        return z, log_ratios(target, mixture, z)

    few = model.few_rows
    compiled_fit = Program(fit_proposal, few)
    return Programs(
        begin=Program(begin, few),
        run_segment=Program(hmc.segment_runner(model.decoder, settings, model.latents_at_once)),
        fit_jumps=compiled_fit if proposal_fit == _JUMP_FIT else Program(fit_jumps, few),
        fit_proposal=compiled_fit,
        propose=Program(propose, few),
        log_ratios=Program(log_ratios, few),
    )
