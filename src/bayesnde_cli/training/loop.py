"""The training loop: batch, step, record, validation check, checkpoint.

A round is many optimizer steps in one compiled call, made of the functions of an objective. Its state is tensors only
and seeds are addresses (run, round, step), so an interrupted stage resumes to the same bytes."""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadArtifact, MissingArtifact, NumericalFailure, SettingsDiffer, Stopped
from bayesnde_cli.formatting import Report
from bayesnde_cli.model.layers import Parameters, global_norm
from bayesnde_cli.runs.files import FORMAT_VERSION, read_arrays, read_object, sweep, write_arrays, write_json
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import compare, forget_checkpoint, settings_differ
from bayesnde_cli.settings.stage_settings import PATIENCE, TrainingSettings
from bayesnde_cli.training.objectives import Data, Losses, Objective, Pace, State
from bayesnde_cli.training.selection import best_check, n_misses

# Arrays that are computed once and read by the next process if this one is stopped: (name, function) -> arrays.
Once = Callable[[str, Callable[[], dict[str, np.ndarray]]], dict[str, np.ndarray]]
RunRound = Callable[[State, Data, tf.Tensor], tuple[State, Losses]]


def compile_round(objective: Objective, n_steps: int) -> RunRound:
    """A compiled function (state, data, seed) -> (state, losses) of `n_steps` steps; seed is an int32 scalar.

    Losses are means over the steps. The round ends with the first step that has a loss that is not finite.
    `first_bad_step` (int32) is the index of that step, or of the last one if weights are not finite after it, else -1.
    """

    # Nothing here needs AutoGraph, whose analysis takes seconds.
    @tf.function(jit_compile=True, autograph=False)
    def run(state: State, data: Data, seed: tf.Tensor) -> tuple[State, Losses]:
        before = state
        state, batches = objective.open_round(state, data, seed)

        def step(index, state, totals, _):  # type: ignore[no-untyped-def]
            state, losses = objective.step(state, batches, index)
            totals = {name: totals[name] + loss for name, loss in losses.items()}
            is_finite = tf.reduce_all(tf.math.is_finite(list(losses.values())))
            return index + 1, state, totals, tf.where(is_finite, -1, index)

        totals = dict.fromkeys(objective.loss_names, tf.constant(0.0))
        n_done, state, totals, bad_step = tf.while_loop(
            lambda index, _state, _totals, bad_step: (index < n_steps) & (bad_step < 0),
            step,
            (tf.constant(0), state, totals, tf.constant(-1)),
        )
        state = objective.close_round(state, before, batches)
        # An objective keeps the weights of its own networks as a mapping in `extra`.
        weights = [state.parameters, *(part for part in state.extra if isinstance(part, dict))]
        is_finite = tf.math.is_finite(tf.add_n([global_norm(part) for part in weights]))
        bad_step = tf.where(is_finite | (bad_step >= 0), bad_step, n_done - 1)
        losses = {name: total / tf.cast(n_done, tf.float32) for name, total in totals.items()}
        return state._replace(round=before.round + 1), losses | {"first_bad_step": bad_step}

    return run


@dataclass(frozen=True)
class Phase:
    """An objective and for how long it is trained. A stage has one phase or several, each from the last one's best."""

    name: str
    objective: Objective
    pace: Pace
    own_data: Callable[[], Data] | None = None  # makes what its rounds read instead of the rows
    n_settling: int = 0  # rounds in which a validation check without improvement does not count
    n_checks: int | None = None  # None: as in the settings
    first_epoch: int = 0  # where its random numbers begin: those of a longer phase follow those of the shorter one
    like: "Phase | None" = None  # a shorter phase, whose compiled round it shares
    least_gain: float | None = None  # in nats, of the phase before; with less, training ends there
    patience: int = PATIENCE  # validation checks without improvement that end it, unless the settings say
    follows_epochs: bool = False  # every epoch has its own noise, and its own part of a table that is too large

    @cached_property
    def data(self) -> Data:
        """What its rounds read instead of the rows; made at its first use."""
        return self.own_data() if self.own_data else None

    @cached_property
    def run(self) -> RunRound:
        """One round, compiled at its first call."""
        return self.like.run if self.like else compile_round(self.objective, self.pace.steps_per_round)

    def is_check_due(self, n_rounds: int, n_checks: int | None) -> bool:
        """Whether a validation check follows this round: `n_checks` are evenly spaced, the last one at the end."""
        n_checks = min(self.n_checks or n_checks or 1, self.pace.n_rounds)
        return n_rounds * n_checks // self.pace.n_rounds > (n_rounds - 1) * n_checks // self.pace.n_rounds

    def position(self, n_rounds: int) -> dict[str, Any]:
        """The position after some rounds, as columns of the history."""
        rounds_per_epoch = self.pace.rounds_per_epoch
        epoch = None if rounds_per_epoch is None else n_rounds / rounds_per_epoch
        step = n_rounds * self.pace.steps_per_round
        return {"phase": self.name, "round": n_rounds, "epoch": epoch, "step": step}

    def describe(self, n_rounds: int) -> str:
        """The position after some rounds in words."""
        at = self.position(n_rounds)
        return f"step {at['step']:,}" if at["epoch"] is None else f"epoch {at['epoch']:.6g}"


@dataclass
class Progress:
    """How far a stage has come."""

    phase: int
    n_rounds: int  # finished in this phase
    state: Any
    history: list[dict[str, Any]] = field(default_factory=list)  # a row for each round
    checks: list[dict[str, Any]] = field(default_factory=list)  # a row for each validation check
    seconds: float = 0.0  # that rounds and checks took


@dataclass(frozen=True)
class Training:
    """The phases of a stage, what they are trained on, and how they are checked."""

    settings: TrainingSettings
    phases: Sequence[Phase]
    rows_of: Callable[[int | None], Data]  # the rows of an epoch; None: those of the start, as prepared
    check: Callable[[Parameters], dict[str, float | None]]  # figures of weights on validation rows
    seed: tf.Tensor  # int32 scalar

    def run(self, weights: Parameters, checkpoints: "Checkpoints", report: Report) -> Progress:
        """Train every phase from `weights`, or resume from the last checkpoint."""
        progress = checkpoints.read(lambda index: self._start(index, weights))
        if progress is None:
            progress = Progress(0, 0, self._settle(0, weights))
        else:
            report.note(f"resuming after {self.phases[progress.phase].describe(progress.n_rounds)}")
        try:
            is_over = False
            while not is_over:
                is_over = self._run_phases(progress, checkpoints, report)
            return progress
        except Stopped:
            checkpoints.write(progress)
            raise

    def _run_phases(self, progress: Progress, checkpoints: "Checkpoints", report: Report) -> bool:
        """Train up to the next phase whose need depends on the one before; whether training is over."""
        first = last = progress.phase
        while first > 0 and self.phases[first].least_gain is None:
            first -= 1
        while last + 1 < len(self.phases) and self.phases[last + 1].least_gain is None:
            last += 1
        rounds = [phase.pace.n_rounds for phase in self.phases]
        label = self.settings.stage if first == 0 else f"{self.settings.stage}, cycle {first + 1}"
        with report.progress(label, sum(rounds[first : last + 1]), "rounds") as advance:
            advance(sum(rounds[first : progress.phase]) + progress.n_rounds)
            while True:
                stopping.check()
                started = time.monotonic()
                phase = self.phases[progress.phase]
                if self._is_check_due(progress):
                    average = progress.state.average
                    figures = self.check(average)
                    progress.checks.append(phase.position(progress.n_rounds) | figures)
                    checkpoints.write_weights(len(progress.checks) - 1, average)
                    checkpoints.write(progress)
                    checkpoints.forget(progress.checks)
                    report.note(_describe_check(phase, progress))
                if not self._is_phase_over(progress):
                    data = self._data(phase, progress.n_rounds)
                    state, losses = phase.run(progress.state, data, self.seed + phase.first_epoch)
                    record = read_losses(losses, phase, progress.n_rounds)
                    progress.state, progress.n_rounds = state, progress.n_rounds + 1
                    progress.history.append(phase.position(progress.n_rounds) | record)
                    progress.seconds += time.monotonic() - started
                    advance(1)
                elif self._is_next_needed(progress):
                    best = checkpoints.weights(best_check(progress.checks, self.settings.select))
                    state = self._settle(progress.phase + 1, {name: tf.constant(best[name]) for name in best})
                    progress.phase, progress.n_rounds, progress.state = progress.phase + 1, 0, state
                    if progress.phase > last:
                        return False
                else:
                    if phase.least_gain is not None and progress.n_rounds == self.phases[-1].pace.n_rounds:
                        self._note_end(progress, phase.least_gain, report)
                    return True

    def _note_end(self, progress: Progress, least_gain: float, report: Report) -> None:
        if self._is_gaining(progress, least_gain):
            n_steps = sum(own.pace.n_steps for own in self.phases)
            report.note(
                f"all {n_steps:,} steps were taken, and the last ones still gained: "
                f"`{self.settings.stage} --steps {2 * n_steps} --restart` may gain more"
            )

    def _is_next_needed(self, progress: Progress) -> bool:
        """Whether there is another phase, and the last one gained enough for it."""
        if progress.phase + 1 == len(self.phases):
            return False
        least_gain = self.phases[progress.phase + 1].least_gain
        if least_gain is None:
            return True
        seconds_per_round = progress.seconds / max(len(progress.history), 1)
        if seconds_per_round * self.phases[progress.phase + 1].pace.n_rounds > self._seconds_left(progress):
            return False
        return self._is_gaining(progress, least_gain)

    def _is_gaining(self, progress: Progress, least_gain: float) -> bool:
        """Whether the validation checks of the last cycle are better than those before it, up to its end.

        A cycle that does not end near its best has begun to memorise the rows, and a longer one would memorise more.
        """
        name = self.phases[progress.phase].name
        own, before = (
            [
                check["marginal"]
                for check in progress.checks
                if (check["phase"] == name and check["round"] > 0) is is_own and check["marginal"] is not None
            ]
            for is_own in (True, False)
        )
        best = max(own, default=-math.inf)
        return best > max(before, default=-math.inf) + least_gain and own[-1] > best - least_gain

    def _data(self, phase: Phase, n_rounds: int) -> Data:
        """What the next round of a phase reads."""
        if phase.own_data:
            return phase.data
        if not phase.follows_epochs:
            return self.rows_of(None)
        return self.rows_of(phase.first_epoch + n_rounds // (phase.pace.rounds_per_epoch or 1))

    def _start(self, index: int, weights: Parameters) -> State:
        return self.phases[index].objective.start(weights, self.rows_of(None))

    def _settle(self, index: int, weights: Parameters) -> State:
        """The state before the first round of a phase."""
        state, settle = self._start(index, weights), self.phases[index].objective.settle
        return settle(state, self.rows_of(None), self.seed) if settle else state

    def _is_check_due(self, progress: Progress) -> bool:
        phase, last = self.phases[progress.phase], progress.checks[-1:]
        if last and (last[0]["phase"], last[0]["round"]) == (phase.name, progress.n_rounds):
            return False
        if progress.n_rounds == 0:
            # The weights of the warm start are a candidate, too.
            return self.settings.stage == "refine" and progress.phase == 0
        return self._seconds_left(progress) <= 0.0 or phase.is_check_due(progress.n_rounds, self.settings.checks)

    def _is_phase_over(self, progress: Progress) -> bool:
        phase = self.phases[progress.phase]
        # Not the weights that it began with: large steps lose at first what small ones regain.
        own = [check for check in progress.checks if check["phase"] == phase.name and check["round"] > 0]
        misses = n_misses(own, self.settings.select, after_round=phase.n_settling)
        patience = self.settings.patience
        if patience is None:
            patience = phase.patience
        is_out_of_time = progress.n_rounds > 0 and self._seconds_left(progress) <= 0.0
        return is_out_of_time or progress.n_rounds >= phase.pace.n_rounds or 0 < patience <= misses

    def _seconds_left(self, progress: Progress) -> float:
        return math.inf if self.settings.minutes is None else 60.0 * self.settings.minutes - progress.seconds


def read_losses(losses: Losses, phase: Phase, n_rounds: int) -> dict[str, float]:
    """The losses of a round as numbers; `NumericalFailure` if one is not finite."""
    terms = {name: float(value) for name, value in losses.items()}
    bad_step = int(terms.pop("first_bad_step"))
    bad = [name for name, value in terms.items() if not math.isfinite(value)]
    if not bad and bad_step < 0:
        return terms
    culprits = [name for name in bad if name != "loss"] or bad or ["the gradient"]
    raise NumericalFailure(
        f"a loss is not finite in {phase.name}, step {n_rounds * phase.pace.steps_per_round + bad_step + 1:,}",
        found=f"terms: {', '.join(culprits)}",
        hint="the last validation check is kept; try a smaller --learning-rate, with --restart",
    )


def _describe_check(phase: Phase, progress: Progress) -> str:
    loss = f"loss {progress.history[-1]['loss']:.4f}, " if progress.n_rounds else ""
    marginal = progress.checks[-1]["marginal"]
    figure = "not finite" if marginal is None else f"{marginal:.4f}"
    return f"{phase.name}, {phase.describe(progress.n_rounds)}: {loss}validation log-density {figure}"


class Checkpoints:
    """The checkpoint folder of a stage: its progress, and the weights of validation checks that may be selected."""

    def __init__(
        self, layout: RunLayout, settings: TrainingSettings, identity: dict[str, Any], *, is_restart: bool = False
    ) -> None:
        self._layout, self._identity, self._is_restart = layout, identity, is_restart
        self._stage, self._select = settings.stage, settings.select
        self._state_file = layout.checkpoint_file(self._stage)

    def write(self, progress: Progress) -> None:
        """Save the progress."""
        leaves = {f"{index:05d}": leaf.numpy() for index, leaf in enumerate(tf.nest.flatten(progress.state))}
        facts = {"identity": self._identity, "phase": progress.phase, "n_rounds": progress.n_rounds}
        facts["seconds"] = progress.seconds
        write_arrays(self._state_file, leaves, facts | {"history": progress.history, "checks": progress.checks})

    def read(self, template: Callable[[int], Any]) -> Progress | None:
        """The saved progress, its state in the structure of `template(phase)`.

        A checkpoint with another identity, or one that cannot be read, is an error; a restart removes it. A restart
        that was itself interrupted resumes.
        """
        stored = self._stored()
        if stored is None:
            return None
        arrays, facts = stored
        leaves = [tf.constant(arrays[name]) for name in sorted(arrays)]
        state = tf.nest.pack_sequence_as(template(facts["phase"]), leaves)
        kept = (facts[name] for name in ("history", "checks", "seconds"))
        return Progress(facts["phase"], facts["n_rounds"], state, *kept)

    def _stored(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """The arrays and facts of the state on disk, if it belongs to this identity and all of it can be read."""
        sweep(self._layout.checkpoint_dir(self._stage))
        if not self._state_file.exists():
            return None
        try:
            arrays, facts = read_arrays(self._state_file)
            if differences := compare(facts["identity"], self._identity):
                raise settings_differ(self._layout, self._stage, None, differences)
            for check in self._kept(facts["checks"]):
                self.weights(check)
        except (BadArtifact, MissingArtifact, SettingsDiffer):
            if not self._is_restart:
                raise
            forget_checkpoint(self._layout, self._stage)
            return None
        return arrays, facts

    def choose_once(self, choose: Callable[[Once], list[dict[str, Any]]]) -> tuple[list[dict[str, Any]], float]:
        """The recipes that were tried, and the seconds it took; stored by an earlier process of this stage, or now."""
        self._stored()  # a checkpoint that is refused is refused now, not after minutes of trials
        path = self._layout.choice_file(self._stage)
        with contextlib.suppress(MissingArtifact, BadArtifact):
            found = read_object(path)
            if not compare(found["identity"], self._identity):
                return list(found["records"]), float(found["seconds"])
        started = time.monotonic()
        records = choose(self._compute_once)
        seconds = time.monotonic() - started
        facts = {"identity": self._identity, "records": records, "seconds": seconds}
        write_json(path, facts | {"schema_version": FORMAT_VERSION})
        return records, seconds

    def _compute_once(self, name: str, compute: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The arrays of a trial; stored by an earlier process of this stage, or now."""
        path = self._layout.trial_file(self._stage, name)
        with contextlib.suppress(MissingArtifact, BadArtifact):
            arrays, facts = read_arrays(path)
            if not compare(facts["identity"], self._identity):
                return arrays
        arrays = compute()
        write_arrays(path, arrays, {"identity": self._identity})
        return arrays

    def write_weights(self, check: int, weights: Parameters) -> None:
        """Save the weights of a validation check."""
        arrays = {name: tensor.numpy() for name, tensor in weights.items()}
        write_arrays(self._layout.check_file(self._stage, check), arrays, {})

    def weights(self, check: int) -> dict[str, np.ndarray]:
        """The saved weights of a validation check."""
        return read_arrays(self._layout.check_file(self._stage, check))[0]

    def _kept(self, checks: Sequence[dict[str, Any]]) -> list[int]:
        """The checks whose weights may still be selected; by rank, any may be."""
        if self._select == "rank" or not checks:
            return list(range(len(checks)))
        return [best_check(checks, self._select)]

    def forget(self, checks: Sequence[dict[str, Any]]) -> None:
        """Remove the weights of validation checks that can no longer be selected."""
        with contextlib.suppress(OSError):  # leftovers are removed when the stage is complete
            for check in set(range(len(checks))).difference(self._kept(checks)):
                self._layout.check_file(self._stage, check).unlink(missing_ok=True)
