"""What a training stage keeps to go on after an interruption, and the weights of the looks that may be chosen."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from bayesnde_cli.artifacts.arrays import read_arrays, write_arrays
from bayesnde_cli.artifacts.differences import compare, settings_differ
from bayesnde_cli.artifacts.fingerprint import sha256_json
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import TrainingConfig
from bayesnde_cli.stages.training.looks import chosen_look

if TYPE_CHECKING:
    from bayesnde_cli.stages.training.fitting import Progress


class Checkpoints:
    """The checkpoint folder of one stage."""

    def __init__(self, layout: RunLayout, config: TrainingConfig, identity: dict[str, Any]) -> None:
        self._layout, self._config, self._identity = layout, config, identity
        self._folder = layout.checkpoint_dir(config.stage)

    @property
    def _state_file(self) -> Path:
        return self._folder / "state.npz"

    def _weights_file(self, look: int) -> Path:
        return self._folder / f"look-{look:05d}.npz"

    def write(self, progress: "Progress") -> None:
        leaves = {f"{index:05d}": leaf.numpy() for index, leaf in enumerate(tf.nest.flatten(progress.state))}
        facts = {
            "identity": self._identity,
            "phase": progress.phase,
            "n_rounds": progress.n_rounds,
            "history": list(progress.history),
            "looks": list(progress.looks),
        }
        write_arrays(self._state_file, leaves, facts)

    def read(self, template: Callable[[int], Any]) -> "Progress | None":
        """The progress of the same identity, its state in the structure of `template(phase)`.

        A checkpoint of another identity is left for the user to decide on.
        """
        from bayesnde_cli.stages.training.fitting import Progress

        if not self._state_file.exists():
            return None
        arrays, facts = read_arrays(self._state_file)
        if sha256_json(facts["identity"]) != sha256_json(self._identity):
            stage = self._config.stage
            if not self._layout.manifest_file(stage).exists():
                raise settings_differ(self._layout, stage, None, compare(facts["identity"], self._identity))
            return None  # of the finished run that --restart replaces
        leaves = [tf.constant(arrays[name]) for name in sorted(arrays)]
        state = tf.nest.pack_sequence_as(template(facts["phase"]), leaves)
        return Progress(facts["phase"], facts["n_rounds"], state, tuple(facts["history"]), tuple(facts["looks"]))

    def write_weights(self, look: int, weights: dict[str, np.ndarray]) -> None:
        write_arrays(self._weights_file(look), weights, {})

    def weights(self, look: int) -> dict[str, np.ndarray]:
        """The weights of a look that has not been forgotten."""
        return read_arrays(self._weights_file(look))[0]

    def forget(self, looks: Sequence[dict[str, Any]], select: str) -> None:
        """Remove the weights of looks that cannot be chosen any more; by rank, any may still be."""
        if select != "rank":
            kept = chosen_look(looks, select)
            for look in range(len(looks)):
                if look != kept:
                    self._weights_file(look).unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Remove the weights of all looks: the chosen ones are an output of the stage."""
        with contextlib.suppress(FileNotFoundError):
            for path in self._folder.glob("look-*.npz"):
                path.unlink(missing_ok=True)
