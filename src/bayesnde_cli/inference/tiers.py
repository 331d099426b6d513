"""From rows to log-densities, each by the cheapest method that is good enough for it:

    importance  find the modes of the row's latent posterior and sample around them, with more and more draws
    refit       fit a mixture to these draws, resampled by weight, and sample from it; again with twice the draws
    bridge      Markov chains, and bridge sampling between them and a proposal: see `engine`

A method is accepted for a row if its error is below the target and every check passes: the shape of the largest
weights, two halves of the draws, the estimate before, and a search for modes. No check sees a mode that no start point
leads to, so a random sample of the accepted rows is bridged as well: the audit. Of rows whose density is nearly all
that of closed-form members, any estimate will do."""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

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
# Effective draws per latent that a fit of the proposal needs, and draws that it is given, resampled by weight.
_FIT_PER_LATENT, _N_RESAMPLED = 20, 400
# Refits of the proposal to its own draws; each doubles their number.
_N_REFITS = 6
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

        def weigh(target: Target, places: Modes, own: Proposal | None, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            z, log_q = importance.propose(places, own, self._n_draws, seed)
            return z, model.log_joint(target, z) - log_q

        self._weigh = Program(weigh, model.few_rows)

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
        self._refit(rows, drawn, modes.mode_places(modes_found.modes), scores, derive_seed(seed, "refit"), advance)
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
        for before, now, later in zip((0, *_LEVELS), _LEVELS, (*_LEVELS[1:], 0), strict=False):
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
            # More draws help if the error can be trusted, and either the next level will do, or the last one may and
            # there are too few draws for a fit.
            with np.errstate(divide="ignore", invalid="ignore"):  # the target may be 0
                needed = n_made * (estimate.se / target_se) ** 2
            can_fit = n_made / (1.0 + n_made * estimate.se**2) >= _FIT_PER_LATENT * self._model.latent_dim
            can_help = (needed <= later * n) | ((needed <= most) & ~can_fit)
            is_open[index] = ~is_good & (estimate.pareto_k < MOST_K) & can_help & ~is_missing[index]
        return Weighted(z, log_weights)

    def _refit(
        self, rows: Rows, drawn: Weighted, known: np.ndarray, scores: Scores, seed: int, advance: Callable[[int], None]
    ) -> None:
        """The second method, for rows whose draws have been weighted but are not good enough; it changes `scores`."""
        is_open, rest = (scores["method"] == BRIDGE) & np.isfinite(scores["log_density_scaled"]), drawn
        is_open &= scores["missed_mass"] <= MOST_MISSED_MASS
        was_heavy = np.zeros(len(rows), bool)
        for level in range(_N_REFITS):
            index, n = np.flatnonzero(is_open), 2 * self._n_draws * 2**level
            parts = []
            for group, padded in self._split(index):
                address = derive_seed(seed, level, int(group[0]))
                resampled = proposal.resample(rest.z[padded], rest.log_weights[padded], _N_RESAMPLED)
                to_fit = np.concatenate([known[padded], resampled], axis=1)
                mixture = self.programs.fit_proposal(tf.constant(to_fit), seed_pair(address))
                some = self.propose(Target.from_rows(rows.take(padded)), mixture, n, derive_seed(address, "draws"))
                z, log_weights = (np.concatenate(part, axis=1)[: len(group)] for part in zip(*some, strict=True))
                parts.append((group, Weighted(z, log_weights)))
            if not parts:
                break
            z = np.zeros((len(rows), *parts[0][1].z.shape[1:]), np.float32)
            log_weights = np.zeros(z.shape[:2])
            for group, some_drawn in parts:
                z[group], log_weights[group] = some_drawn
            rest = Weighted(z, log_weights)
            estimate = importance.estimate(log_weights[index])
            estimate = estimate._replace(se=_REFIT_ERROR * estimate.se)
            target_se = self.target_se(rows.take(index), estimate.log_z)
            # A tail that was too heavy a refit ago may be a mode that the fit has lost since: once more, then.
            is_good = self._accept(index, estimate, target_se, n, REFIT, scores, is_doubtful=was_heavy[index])
            was_heavy[index] = estimate.pareto_k >= MOST_K
            scores["n_likelihoods"][index] += n
            is_open[index] = ~is_good
            advance(int(is_good.sum()))

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
