"""From rows to log-densities, each by the cheapest method that is good enough for it:

    importance  find the modes of the row's latent posterior and sample around them, with more and more draws
    refit       fit a mixture to these draws, resampled by weight, and sample from it and around the modes as before
    bridge      Markov chains, and bridge sampling between them and a proposal: see `engine`

A method is accepted for a row if its error is below the target and every check passes: the shape of the largest
weights, two halves of the draws, the estimate before, and a search for modes. No check sees a mode that no start point
leads to, so a random sample of the accepted rows is bridged as well: the audit. Of rows whose density is nearly all
that of closed-form members, any estimate will do."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.inference import importance, modes, proposal
from bayesnde_cli.inference.bridge import BRIDGE, IMPORTANCE, MOST_MISSED_MASS, REFIT, RELIABLE
from bayesnde_cli.inference.engine import ROUNDING, UNSOUND_SE, Engine, Scores, is_negligible
from bayesnde_cli.inference.fitted_model import FittedModel, Program
from bayesnde_cli.inference.importance import MOST_K
from bayesnde_cli.inference.mode_search import Found, SearchSize, split
from bayesnde_cli.inference.modes import Modes
from bayesnde_cli.inference.proposal import FitSettings, MixtureOfT
from bayesnde_cli.model.backend import seed_pair
from bayesnde_cli.model.coders import Proposal
from bayesnde_cli.model.likelihood import Target
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import DensitySettings

# Rows that are sampled around their modes, or refitted, together: the smallest of these sizes that holds them, or of
# this many cells.
_GROUPS, _GROUP_CELLS = (2, 16), 6_000
# Numbers in the matrices of all draws of a group, at most.
_GROUP_NUMBERS = 50_000_000
# The search for modes.
_SEARCH = SearchSize(n_starts=(6, 15, 45), n_steps=48, n_kept=6)
# Draws around the modes, one number after the other as long as it helps, in halves of the first.
_LEVELS = (2, 3, 4, 6, 8, 12, 16)
# Draws that a fit of the proposal is given, resampled by weight.
_N_RESAMPLED = 400
# Draws of a refitted proposal, in the same unit. Half of them are made around the modes: a fit to few draws has less
# mass in the tails than the posterior, and its weights alone vary more than those of the draws that it was fitted to.
_REFIT_LEVELS = (4, 8, 12, 16, 24, 32, 64)
# Components and steps of rough refits if there are more latents than this, rough refits, and all refits. Of 23 rows of
# a table with 14 latents the median of the variance of the weights was 3.4 around the modes, and after a refit to 512
# draws 2.6 with five components, 2.1 with two and 2.0 with one. Where there are few latents, five fit bends better.
_FEW_COMPONENTS, _FEW_EM_STEPS, _FEW_LATENTS = 2, 8, 4
_N_ROUGH_REFITS, _N_REFITS = 3, 5
# No proposal is given up before this many draws, in the same unit, unless k is beyond the second number: few draws tell
# little about k, and the next fit needs them anyway.
_LEAST_LEVEL, _HOPELESS_K = 4, 1.0
# Factor on the error of a refit: its proposal was fitted to draws of the same row, and it is taken when it looks small.
# On 757 rows with known densities errors were 1.09 times as large.
_REFIT_ERROR = 1.1
# Standard errors by which two estimates of a row may differ, in addition to the target.
_MOST_APART = 5.0
# Columns that add up over methods.
_SPENT = ("n_gradients", "n_likelihoods")


class Weighted(NamedTuple):
    """Draws of each row and their log-weights; -inf stands for a draw that was not made."""

    z: np.ndarray  # (rows, n, d)
    log_weights: np.ndarray  # (rows, n)


class TieredEngine(Engine):
    """Scores rows by the cheapest method that each allows; equal arguments give equal bits."""

    def __init__(self, model: FittedModel, settings: DensitySettings) -> None:
        super().__init__(model, settings)
        self._n_draws = (self._settings.importance_draws or 0) // 2  # that are made at once

        n = self._n_draws
        kernel: dict[str, Any] = {"freedom": settings.freedom, "defensive_weight": settings.defensive_weight}
        rough_fit = FitSettings(self._settings.components, settings.regulariser, settings.absolute_regulariser)
        if model.latent_dim > _FEW_LATENTS:
            n_components = min(_FEW_COMPONENTS, rough_fit.n_components)
            rough_fit = rough_fit._replace(n_components=n_components, n_steps=_FEW_EM_STEPS)

        def weigh(target: Target, places: Modes, own: Proposal | None, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            z, log_q = importance.propose(places, own, n, seed)
            return z, model.log_joint(target, z) - log_q

        def weigh_refit(
            target: Target, places: Modes, own: Proposal | None, mixture: MixtureOfT, seeds: tuple[tf.Tensor, tf.Tensor]
        ) -> tuple[tf.Tensor, tf.Tensor]:
            drawn = importance.draw(places, own, n, seeds[0]), proposal.draw(mixture, n, seeds[1], **kernel)
            z = tf.concat(drawn, axis=1)
            parts = importance.log_prob(places, own, n, z), proposal.log_prob(mixture, z, **kernel)
            return z, model.log_joint(target, z) - (tf.reduce_logsumexp(parts, axis=0) - math.log(2.0))

        self._weigh, self._weigh_refit = Program(weigh, model.few_rows), Program(weigh_refit, model.few_rows)
        self._fit_roughly = Program(lambda z, seed: proposal.fit(z, rough_fit, seed), model.few_rows)

    def estimate(
        self, rows: Rows, seed: int, audited: np.ndarray | None = None, advance: Callable[[int], None] | None = None
    ) -> Scores:
        """The columns of every row; `advance` hears how many rows are done.

        Rows where `audited` (rows,) that need no bridge are bridged as well, for the columns audit_log_density and
        audit_mc_se; these are NaN elsewhere. With the method `bridge`, every row is bridged, and nothing else is tried.
        """
        advance = advance or (lambda n: None)
        if self._settings.method == BRIDGE:
            size = min(self._settings.block_rows or 1, 1 << (len(rows) - 1).bit_length())
            parts = []
            for index, padded in split(np.arange(len(rows)), [size]):
                some, address = rows.take(padded), derive_seed(seed, "rows", int(index[0]))
                found = self.score(some, self.sample(some, address), address, n_real=len(index))
                parts.append({name: values[: len(index)] for name, values in found.items()})
                advance(len(index))
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        modes_found, n_rows = self.finder.find(rows, _SEARCH, derive_seed(seed, "modes")), len(rows)
        scores: Scores = {
            **{name: np.full(n_rows, np.nan) for name in ("log_density_scaled", "mc_se", "pareto_k")},
            **{name: np.full(n_rows, np.nan) for name in ("audit_log_density", "audit_mc_se")},
            "missed_mass": modes_found.missed_mass.astype(np.float64),
            "method": np.full(n_rows, BRIDGE, object),
            "verdict": np.full(n_rows, RELIABLE, object),
            "reliable": np.ones(n_rows, bool),
            "n_gradients": modes_found.n_gradients.copy(),
            "n_likelihoods": np.zeros(n_rows, np.int64),
        }
        drawn = self._sample_around(rows, modes_found, scores, derive_seed(seed, "around"), advance)
        self._refit(rows, drawn, modes_found, scores, derive_seed(seed, "refit"), advance)
        is_audited = np.zeros(len(rows), bool) if audited is None else audited
        self._bridge(rows, is_audited, scores, derive_seed(seed, "bridge"), advance)
        return scores

    def _sample_around(
        self, rows: Rows, modes_found: Found, scores: Scores, seed: int, advance: Callable[[int], None]
    ) -> Weighted:
        """The first method, for rows of which no mode seems to be missing; it changes `scores`."""
        n, most = self._n_draws, _LEVELS[-1] * self._n_draws
        z = np.zeros((len(rows), most, self._model.latent_dim), np.float32)
        log_weights = np.full((len(rows), most), -np.inf)
        is_missing = ~(scores["missed_mass"] <= MOST_MISSED_MASS)
        is_open = np.full(len(rows), True) if rows.log_rest is not None else ~is_missing
        for before, now in itertools.pairwise((0, *_LEVELS)):
            for part, (index, padded) in itertools.product(range(before, now), self._split(np.flatnonzero(is_open))):
                made = slice(part * n, (part + 1) * n)
                address = seed_pair(derive_seed(seed, part, int(index[0])))
                found = modes_found.take(padded)
                own = None if self._model.encoder is None else found.proposal
                drawn = self._weigh(Target.from_rows(rows.take(padded)), found.modes, own, address)
                z[index, made], log_weights[index, made] = (part.numpy()[: len(index)] for part in drawn)
                stopping.check()
            index, n_made = np.flatnonzero(is_open), now * n
            estimate = importance.estimate(log_weights[index, :n_made])
            target_se = self.target_se(rows.take(index), estimate.log_z)
            is_good = self._accept(
                index, estimate, target_se, n_made, IMPORTANCE, scores, is_doubtful=is_missing[index]
            )
            scores["n_likelihoods"][index] += (now - before) * n
            advance(int(is_good.sum()))
            can_help = _can_help(estimate, target_se, n_made, most) | (now < _LEAST_LEVEL)
            is_open[index] = ~is_good & can_help & ~is_missing[index]
        return Weighted(z, log_weights)

    def _refit(
        self, rows: Rows, drawn: Weighted, modes_found: Found, scores: Scores, seed: int, advance: Callable[[int], None]
    ) -> None:
        """The second method, for rows whose draws have been weighted but are not good enough; it changes `scores`."""
        is_open = (scores["method"] == BRIDGE) & np.isfinite(scores["log_density_scaled"])
        is_open &= scores["missed_mass"] <= MOST_MISSED_MASS
        index, was_heavy = np.flatnonzero(is_open), np.zeros(len(rows), bool)
        rest = Weighted(*(part[index] for part in drawn))
        known = modes.mode_places(modes_found.modes)
        for refit in range(_N_REFITS):
            if not len(index):
                break
            address = derive_seed(seed, refit)
            mixtures = self._fit(rest, known[index], address, is_rough=refit < _N_ROUGH_REFITS)
            rest, is_good = self._sample_refit(rows, index, mixtures, modes_found, was_heavy, scores, address, advance)
            index, rest = index[~is_good], Weighted(*(part[~is_good] for part in rest))
            # A tail that was too heavy may be a mode that the draws have hardly seen: once more, then.
            was_heavy[index] = scores["pareto_k"][index] >= MOST_K

    def _fit(self, drawn: Weighted, known: np.ndarray, seed: int, *, is_rough: bool) -> MixtureOfT:
        """A mixture for each row, fitted to its weighted draws and modes, as arrays."""
        fit, parts = self._fit_roughly if is_rough else self.programs.fit_proposal, []
        for group, padded in self._split(np.arange(len(known))):
            resampled = proposal.resample(drawn.z[padded], drawn.log_weights[padded], _N_RESAMPLED)
            to_fit = tf.constant(np.concatenate([known[padded], resampled], axis=1))
            mixture = fit(to_fit, seed_pair(derive_seed(seed, "fit", int(group[0]))))
            parts.append([part.numpy()[: len(group)] for part in mixture])
            stopping.check()
        return MixtureOfT(*(np.concatenate(some) for some in zip(*parts, strict=True)))

    def _sample_refit(
        self,
        rows: Rows,
        index: np.ndarray,
        mixtures: MixtureOfT,
        modes_found: Found,
        is_doubtful: np.ndarray,
        scores: Scores,
        seed: int,
        advance: Callable[[int], None],
    ) -> tuple[Weighted, np.ndarray]:
        """The draws of mixtures of some rows, and which of the rows are done; it changes `scores`."""
        n, most = 2 * self._n_draws, _REFIT_LEVELS[-1] * self._n_draws
        z, log_weights = np.zeros((len(index), 0, self._model.latent_dim), np.float32), np.zeros((len(index), 0))
        is_done, is_open = np.zeros(len(index), bool), np.ones(len(index), bool)
        for level in _REFIT_LEVELS:
            if not is_open.any():
                break
            before, now = z.shape[1], level * self._n_draws
            z = np.pad(z, [(0, 0), (0, now - before), (0, 0)])
            log_weights = np.pad(log_weights, [(0, 0), (0, now - before)], constant_values=-np.inf)
            for first, (place, padded) in itertools.product(
                range(before, now, n), self._split(np.flatnonzero(is_open))
            ):
                found = modes_found.take(index[padded])
                own = None if self._model.encoder is None else found.proposal
                seeds = tuple(seed_pair(derive_seed(seed, kind, first, int(place[0]))) for kind in ("modes", "mixture"))
                mixture = MixtureOfT(*(part[padded] for part in mixtures))
                made = self._weigh_refit(Target.from_rows(rows.take(index[padded])), found.modes, own, mixture, seeds)
                z[place, first : first + n], log_weights[place, first : first + n] = (
                    part.numpy()[: len(place)] for part in made
                )
                stopping.check()
            place = np.flatnonzero(is_open)
            some = index[place]
            estimate = importance.estimate(log_weights[place])
            estimate = estimate._replace(se=_REFIT_ERROR * estimate.se)
            target_se = self.target_se(rows.take(some), estimate.log_z)
            is_good = self._accept(some, estimate, target_se, now, REFIT, scores, is_doubtful=is_doubtful[some])
            scores["n_likelihoods"][some] += now - before
            advance(int(is_good.sum()))
            can_help = _can_help(estimate, target_se, now, most)
            if level <= _LEAST_LEVEL:
                can_help |= estimate.pareto_k < _HOPELESS_K
            is_done[place] = is_good
            is_open[place] = ~is_good & can_help & ~is_doubtful[some]
        return Weighted(z, log_weights), is_done

    def _accept(
        self,
        index: np.ndarray,
        estimate: importance.Estimate,
        target_se: np.ndarray,
        n: int,
        method: str,
        scores: Scores,
        *,
        is_doubtful: np.ndarray | bool = False,
    ) -> np.ndarray:
        """Take the estimates of rows, from n draws; returns which of them are good enough to stop.

        Those that are doubtful count as off by `UNSOUND_SE`, as do those that fail a check.
        """
        se = np.hypot(estimate.se, ROUNDING * np.abs(estimate.log_z))
        before, se_before = scores["log_density_scaled"][index], scores["mc_se"][index]
        is_apart = np.abs(estimate.log_z - before) > _MOST_APART * np.hypot(se, se_before) + target_se  # False for NaN
        is_good = estimate.is_sound(n) & (se <= target_se) & ~is_apart & ~np.asarray(is_doubtful)
        is_small = ~is_good & ~is_apart & is_negligible(estimate.log_z, se, target_se)
        se, is_good = np.where(is_small, np.maximum(se, UNSOUND_SE), se), is_good | is_small
        # Where an estimate contradicts the one before, that one stays: another fit must not make it forgotten.
        scores["log_density_scaled"][index] = np.where(is_apart, before, estimate.log_z)
        scores["mc_se"][index] = np.where(is_apart, se_before, se)
        scores["pareto_k"][index] = estimate.pareto_k
        scores["method"][index[is_good]] = method
        return is_good

    def _bridge(
        self, rows: Rows, is_audited: np.ndarray, scores: Scores, seed: int, advance: Callable[[int], None]
    ) -> None:
        """The last method, for what is left and for the audit; it changes `scores`."""
        is_open = scores["method"] == BRIDGE
        for index, padded in self.groups(np.flatnonzero(is_open | is_audited)):
            n, some, address = len(index), rows.take(padded), derive_seed(seed, int(index[0]))
            found = self.score(some, self.sample(some, address), address, n_real=n)
            found = {name: values[:n] for name, values in found.items()}
            here, left, audit = is_open[index], index[is_open[index]], index[~is_open[index]]
            for name, values in found.items():
                if name not in scores:
                    scores[name] = np.zeros(len(rows), values.dtype)
                spent = scores[name][left] if name in _SPENT else 0
                scores[name][left] = values[here] + spent if name in _SPENT else values[here]
            # A bridge that is not reliable itself checks nothing: its error is infinite.
            scores["audit_log_density"][audit] = found["log_density_scaled"][~here]
            scores["audit_mc_se"][audit] = np.where(found["reliable"], found["mc_se"], np.inf)[~here]
            advance(len(left))

    def _split(self, index: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Positions in groups of rows that are sampled together: every draw may need a matrix of its own."""
        most = max(1, _GROUP_NUMBERS // (self._n_draws * self._model.latent_dim**2))
        return split(index, [min(most, self._model.limit(size, _GROUP_CELLS)) for size in _GROUPS])


def _can_help(estimate: importance.Estimate, target_se: np.ndarray, n: int, most: int) -> np.ndarray:
    """Whether more draws may do: the error of n can be trusted, and would be below the target with the most."""
    with np.errstate(divide="ignore", invalid="ignore"):  # the target may be 0
        return (estimate.pareto_k < MOST_K) & (n * (estimate.se / target_se) ** 2 <= most)
