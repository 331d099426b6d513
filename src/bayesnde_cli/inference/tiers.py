"""From rows to log-densities, each by the cheapest method that is good enough for it:

    importance  find the modes of the row's latent posterior and sample around them, with more and more draws
    refit       fit a mixture to these draws, resampled by weight, and sample from it; again with twice the draws
    bridge      Markov chains, and bridge sampling between them and a proposal: see `engine`

A method is accepted for a row if its error is below the target and every check passes: the shape of the largest
weights, two halves of the draws, the estimate before, and a search for modes. No check sees a mode that no start point
leads to, so a random sample of the accepted rows is bridged as well: the audit."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.inference import importance, modes, proposal
from bayesnde_cli.inference.bridge import BRIDGE, IMPORTANCE, MOST_MISSED_MASS, REFIT, RELIABLE
from bayesnde_cli.inference.engine import (
    N_RESAMPLED,
    ROUNDING,
    Engine,
    FittedModel,
    Scores,
    compile_program,
    encode,
    log_joint_in_slices,
    pad_draws,
)
from bayesnde_cli.inference.importance import MOST_K
from bayesnde_cli.inference.modes import Modes, SearchSize
from bayesnde_cli.model import backend
from bayesnde_cli.model.backend import seed_pair
from bayesnde_cli.model.coders import Proposal
from bayesnde_cli.model.likelihood import Target
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import DensitySettings

# Rows that are sampled around their modes together: the smallest of these sizes that holds them, or of this many cells.
_GROUPS, _GROUP_CELLS = (2, 8, 64), 6_000
# Numbers in the matrices of all draws of a group, at most.
_GROUP_NUMBERS = 50_000_000
# The search for modes: start points in addition to the encoder's point, and how far it goes. The second one is for
# rows where the first may have missed a mode.
_SEARCHES = (SearchSize(n_starts=5, n_steps=12, n_kept=6), SearchSize(n_starts=20, n_steps=24, n_kept=6))
# Times that draws are added around the modes; every time as many as at first.
_N_ADDED = 3
# Effective draws per latent that a fit of the proposal needs.
_FIT_PER_LATENT = 20
# Refits of the proposal to its own draws; each doubles their number.
_N_REFITS = 4
# Standard errors by which two estimates of a row may differ, in addition to the target.
_MOST_APART = 5.0
# Columns that add up over methods.
_SPENT = ("n_gradients", "n_likelihoods")


class Found(NamedTuple):
    """What a search for modes found for each row: where its draws come from."""

    modes: Modes
    proposal: Proposal  # of the encoder
    places: tf.Tensor  # of the modes (rows, modes, d), NaN for modes of negligible weight
    missed_mass: tf.Tensor  # (rows,)
    n_gradients: tf.Tensor  # (rows,)

    def take(self, index: np.ndarray | slice) -> "Found":
        """What was found for some rows."""
        return tf.nest.map_structure(lambda part: part[index], self)


class Weighted(NamedTuple):
    """Draws of each row and their log-weights; -inf stands for a draw that was not made."""

    z: np.ndarray  # (rows, n, d)
    log_weights: np.ndarray  # (rows, n)


class TieredEngine(Engine):
    """Scores rows by the cheapest method that each allows; equal arguments give equal bits."""

    def __init__(self, model: FittedModel, settings: DensitySettings) -> None:
        super().__init__(model, settings)
        self._n_draws, bank = self._settings.importance_draws or 0, self.bank

        def search(target: Target, size: SearchSize, seed: tf.Tensor) -> Found:
            encoded = encode(model, bank, target)
            uniform = backend.uniform([target.x.shape[0], bank.z.shape[0]], seed, minval=1e-30)
            candidates = modes.choose_candidates(bank, target, encoded.mean, size.n_starts, uniform)
            starts = tf.concat([encoded.mean[:, None], candidates], axis=1)
            found = modes.find_modes(model.decoder, target, starts, None, size)
            # A Newton step takes a gradient, and a derivative along every latent.
            n_gradients = (1 + size.n_starts) * (found.n_steps + 1) * (1 + model.latent_dim)
            n_gradients = tf.fill([target.x.shape[0]], n_gradients)
            return Found(found.modes, encoded, modes.mode_places(found.modes), found.missed_mass, n_gradients)

        def weigh(target: Target, found: Found, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            own = None if model.encoder is None else found.proposal
            z, log_q = importance.propose(found.modes, own, self._n_draws, seed)
            return z, log_joint_in_slices(model, target, z) - log_q

        self._search, self._weigh = compile_program(search), compile_program(weigh)

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
            for index in _split(np.arange(len(rows)), size):
                some, address = rows.take(index).pad(size), derive_seed(seed, "rows", int(index[0]))
                found = self.score(some, self.sample(some, address), address, n_real=len(index))
                parts.append({name: values[: len(index)] for name, values in found.items()})
                advance(len(index))
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        modes_found, n_rows = self._find_modes(rows, derive_seed(seed, "modes")), len(rows)
        scores: Scores = {
            **{name: np.full(n_rows, np.nan) for name in ("log_density_scaled", "mc_se", "pareto_k")},
            **{name: np.full(n_rows, np.nan) for name in ("audit_log_density", "audit_mc_se")},
            "missed_mass": modes_found.missed_mass.astype(np.float64),
            "method": np.full(n_rows, BRIDGE, object),
            "verdict": np.full(n_rows, RELIABLE, object),
            "reliable": np.ones(n_rows, bool),
            "n_gradients": modes_found.n_gradients,
            "n_likelihoods": np.zeros(n_rows, np.int64),
        }
        drawn = self._sample_around(rows, modes_found, scores, derive_seed(seed, "around"), advance)
        self._refit(rows, drawn, modes_found.places, scores, derive_seed(seed, "refit"), advance)
        is_audited = np.zeros(len(rows), bool) if audited is None else audited
        self._bridge(rows, is_audited, scores, derive_seed(seed, "bridge"), advance)
        return scores

    def _find_modes(self, rows: Rows, seed: int) -> Found:
        """The modes of all rows; where the first search may have missed one, a second one begins at more points."""
        index, spent = np.arange(len(rows)), np.zeros(len(rows), np.int64)
        found: Found | None = None
        for level, size in enumerate(_SEARCHES):
            for group in self._split(index):
                address = seed_pair(derive_seed(seed, level, int(group[0])))
                part = self._search(Target.from_rows(rows.take(self._pad(group))), size, address)
                part = tf.nest.map_structure(lambda tensor: tensor.numpy(), part).take(slice(len(group)))
                if found is None:
                    found = tf.nest.map_structure(
                        lambda values: np.zeros((len(rows), *values.shape[1:]), values.dtype), part
                    )
                for whole, values in zip(tf.nest.flatten(found), tf.nest.flatten(part), strict=True):
                    whole[group] = values
                spent[group] += part.n_gradients
                stopping.check()
            assert found is not None
            index = np.flatnonzero(~(found.missed_mass <= MOST_MISSED_MASS))
        assert found is not None
        return found._replace(n_gradients=spent)

    def _sample_around(
        self, rows: Rows, modes_found: Found, scores: Scores, seed: int, advance: Callable[[int], None]
    ) -> Weighted:
        """The first method, for rows of which no mode seems to be missing; it changes `scores`."""
        n, most = self._n_draws, (1 + _N_ADDED) * self._n_draws
        z = np.zeros((len(rows), most, self._model.latent_dim), np.float32)
        log_weights = np.full((len(rows), most), -np.inf)
        is_open = scores["missed_mass"] <= MOST_MISSED_MASS
        for level in range(1 + _N_ADDED):
            made = slice(level * n, (level + 1) * n)
            for index in self._split(np.flatnonzero(is_open)):
                padded = self._pad(index)
                address = seed_pair(derive_seed(seed, level, int(index[0])))
                found = self._weigh(Target.from_rows(rows.take(padded)), modes_found.take(padded), address)
                z[index, made], log_weights[index, made] = (part.numpy()[: len(index)] for part in found)
                stopping.check()
            index = np.flatnonzero(is_open)
            estimate = importance.estimate(log_weights[index, : made.stop])
            is_good = self._accept(index, estimate, made.stop, IMPORTANCE, scores)
            scores["n_likelihoods"][index] += n
            advance(int(is_good.sum()))
            # More draws help if the error can be trusted, and can meet the target with as many as there may be. A fit
            # needs fewer, once there are enough draws to fit to.
            least_se = estimate.se * np.sqrt(made.stop / most)
            n_effective = made.stop / (1.0 + made.stop * estimate.se**2)
            can_help = (least_se <= self._settings.target_se) & (estimate.pareto_k < MOST_K)
            is_open[index] = ~is_good & can_help & (n_effective < _FIT_PER_LATENT * self._model.latent_dim)
        return Weighted(z, log_weights)

    def _refit(
        self, rows: Rows, drawn: Weighted, known: np.ndarray, scores: Scores, seed: int, advance: Callable[[int], None]
    ) -> None:
        """The second method, for rows whose draws have been weighted but are not good enough; it changes `scores`."""
        is_open = (scores["method"] == BRIDGE) & np.isfinite(scores["log_density_scaled"])
        n_padded = self.n_to_fit(self._budget)
        for group in _split(np.flatnonzero(is_open), self.group_rows):
            padded = np.resize(group, self.group_rows)
            target = Target.from_rows(rows.take(padded))
            z, log_weights = (part[padded] for part in drawn)
            for level in range(_N_REFITS):
                address = derive_seed(seed, int(group[0]), level)
                to_fit = np.concatenate([known[padded], proposal.resample(z, log_weights, N_RESAMPLED)], axis=1)
                mixture = self.programs.fit_proposal(pad_draws(to_fit, n_padded), seed_pair(address))
                n = self._n_draws * 2**level
                parts = self.propose(target, mixture, n, derive_seed(address, "draws"))
                z, log_weights = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
                is_left = scores["method"][group] == BRIDGE
                index = group[is_left]
                estimate = importance.estimate(log_weights[: len(group)][is_left])
                self._accept(index, estimate, n, REFIT, scores)
                scores["n_likelihoods"][index] += n
                if (scores["method"][group] == REFIT).all():
                    break
            advance(int((scores["method"][group] == REFIT).sum()))

    def _accept(
        self, index: np.ndarray, estimate: importance.Estimate, n: int, method: str, scores: Scores
    ) -> np.ndarray:
        """Take the estimates of rows, from n draws; returns which of them are good enough to stop."""
        target_se = self._settings.target_se
        se = np.hypot(estimate.se, ROUNDING * np.abs(estimate.log_z))
        before, se_before = scores["log_density_scaled"][index], scores["mc_se"][index]
        is_apart = np.abs(estimate.log_z - before) > _MOST_APART * np.hypot(se, se_before) + target_se  # False for NaN
        is_good = estimate.is_sound(n) & (se <= target_se) & ~is_apart
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
        for index in _split(np.flatnonzero(is_open | is_audited), self.group_rows):
            n, some = len(index), rows.take(np.resize(index, self.group_rows))
            address = derive_seed(seed, int(index[0]))
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

    @property
    def _most_rows(self) -> int:
        """Rows that are sampled together, at most: every draw may need a matrix of its own."""
        matrices = self._n_draws * self._model.latent_dim**2
        return max(1, min(self._model.limit(_GROUPS[-1], _GROUP_CELLS), _GROUP_NUMBERS // matrices))

    def _split(self, index: np.ndarray) -> list[np.ndarray]:
        """Positions in groups of rows that are sampled together."""
        return _split(index, self._most_rows)

    def _pad(self, index: np.ndarray) -> np.ndarray:
        """The positions of a group, repeated up to the size of a compiled program."""
        size = next(size for size in _GROUPS if size >= len(index))
        return np.resize(index, min(size, self._most_rows))


def _split(index: np.ndarray, size: int) -> list[np.ndarray]:
    """Positions (n,) in groups of a size; the last may be smaller."""
    return [index[first : first + size] for first in range(0, len(index), size)]
