"""What a training stage keeps to go on after an interruption, and the weights of the looks that may be chosen."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from bayesnde_cli.artifacts.arrays import read_arrays, write_arrays
from bayesnde_cli.artifacts.atomic import sweep
from bayesnde_cli.artifacts.differences import compare, settings_differ
from bayesnde_cli.artifacts.fingerprint import sha256_json
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import TrainingConfig
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.stages.training.looks import chosen_look

if TYPE_CHECKING:
    from bayesnde_cli.stages.training.fitting import Progress


class Checkpoints:
    """The checkpoint folder of one stage."""

    def __init__(
        self, layout: RunLayout, config: TrainingConfig, identity: dict[str, Any], *, is_restart: bool = False
    ) -> None:
        self._layout, self._config, self._identity, self._is_restart = layout, config, identity, is_restart
        self._folder = layout.checkpoint_dir(config.stage)

    @property
    def _state_file(self) -> Path:
        return self._layout.checkpoint_file(self._config.stage)

    def _weights_file(self, look: int) -> Path:
        return self._layout.look_file(self._config.stage, look)

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

        One of another identity, or one that cannot be read, is an error unless this is a restart. A restart that was
        itself interrupted goes on.
        """
        from bayesnde_cli.stages.training.fitting import Progress

        sweep(self._folder)
        if not self._state_file.exists():
            return None
        try:
            arrays, facts = read_arrays(self._state_file)
        except BadArtifact:
            if self._is_restart:
                return None
            raise
        if sha256_json(facts["identity"]) != sha256_json(self._identity):
            if self._is_restart:
                return None
            raise settings_differ(self._layout, self._config.stage, None, compare(facts["identity"], self._identity))
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
            with contextlib.suppress(OSError):  # what stays is removed when the stage is complete
                for look in range(len(looks)):
                    if look != kept:
                        self._weights_file(look).unlink(missing_ok=True)
