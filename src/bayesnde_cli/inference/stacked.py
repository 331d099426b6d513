"""The engine of a stack: the fitted model's estimates, with the members that have closed forms added.

The engine of the fitted model is told what the others hold, and spends less on rows where its share is small."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bayesnde_cli.inference.class_screen import POOR_SE, FirstFigures, FirstLook
from bayesnde_cli.inference.diagnostics import Draws
from bayesnde_cli.inference.engine import UNSOUND_SE, Scores
from bayesnde_cli.inference.tiers import TieredEngine
from bayesnde_cli.model.stack import Stack, error_of_stack
from bayesnde_cli.rows import Rows

# Log-densities and their errors among the columns of an engine.
_ESTIMATES = {"log_density_scaled": "mc_se", "log_density_is": "mc_se_is", "audit_log_density": "audit_mc_se"}


@dataclass(frozen=True)
class StackedEngine:
    """Scores rows by a stack; draws and their diagnostics are those of the fitted model."""

    engine: TieredEngine
    stack: Stack

    def estimate(
        self, rows: Rows, seed: int, audited: np.ndarray | None = None, advance: Callable[[int], None] | None = None
    ) -> Scores:
        rows = self._with_rest(rows)
        return self._add(rows, self.engine.estimate(rows, seed, audited, advance))

    def score(self, rows: Rows, draws: Draws, seed: int, n_real: int | None = None) -> Scores:
        rows = self._with_rest(rows)
        return self._add(rows, self.engine.score(rows, draws, seed, n_real))

    def sample(self, rows: Rows, seed: int) -> Draws:
        return self.engine.sample(rows, seed)

    def diagnostics(self, draws: Draws) -> Scores:
        return self.engine.diagnostics(draws)

    def _with_rest(self, rows: Rows) -> Rows:
        return replace(rows, log_rest=self.stack.log_rest(rows))

    def _add(self, rows: Rows, scores: Scores) -> Scores:
        """The columns with the members' densities added to the fitted model's."""
        assert rows.log_rest is not None
        for name, name_of_se in _ESTIMATES.items():
            if name in scores:
                scores[name_of_se] = error_of_stack(scores[name_of_se], scores[name], rows.log_rest)
                scores[name] = self.stack.add(scores[name], rows)
        return scores


def stacked_look(look: FirstLook, stack: Stack) -> FirstLook:
    """A screen of the classes with the members' densities added."""

    def first_look(x: np.ndarray, seed: int, prior: np.ndarray, known: np.ndarray | None) -> FirstFigures:
        first = look(x, seed, prior, known)
        log_density = first.log_density.copy()
        se = np.where(first.se > POOR_SE, np.maximum(first.se, UNSOUND_SE), first.se)
        for index, y in enumerate(np.eye(len(prior), dtype=np.float32)):
            rows = Rows(x, None, np.tile(y, (len(x), 1)))
            log_rest = stack.log_rest(rows)
            se[:, index] = error_of_stack(se[:, index], log_density[:, index], log_rest)
            log_density[:, index] = stack.add(log_density[:, index], replace(rows, log_rest=log_rest))
        return FirstFigures(log_density, se, first.n_gradients)

    return first_look
