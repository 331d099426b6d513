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
from bayesnde_cli.artifacts.layout import RunLayout, repair_hint
from bayesnde_cli.config import TrainingConfig
from bayesnde_cli.errors import BadArtifact, MissingArtifact, SettingsDiffer
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
        sweep(self._folder)
        if not self._state_file.exists():
            return None
        try:
            return self._progress(template)
        except (BadArtifact, MissingArtifact, SettingsDiffer):
            if self._is_restart:
                return None
            raise

    def _progress(self, template: Callable[[int], Any]) -> "Progress":
        from bayesnde_cli.stages.training.fitting import Progress

        arrays, facts = read_arrays(self._state_file)
        self._check_identity(facts.get("identity"))
        try:
            phase, n_rounds, history, looks = (facts[name] for name in ("phase", "n_rounds", "history", "looks"))
            state = self._state(arrays, template(phase))
            kept = self._kept(looks, self._config.select)
            progress = Progress(phase, n_rounds, state, tuple(history), tuple(looks))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise self._damaged(self._state_file, f"{error!r}") from error
        for look in kept:
            self.weights(look)
        return progress

    def _check_identity(self, found: Any) -> None:
        if not isinstance(found, dict):
            raise self._damaged(self._state_file, f"identity is {found!r}")
        if differences := compare(found, self._identity):
            raise settings_differ(self._layout, self._config.stage, None, differences)
        self._identity = found  # to the letter: the weights of looks carry its hash

    def _state(self, arrays: dict[str, np.ndarray], template: Any) -> Any:
        """The arrays in the structure of a state; `BadArtifact` if they are those of another one."""
        wanted = [(leaf.dtype.as_numpy_dtype, tuple(leaf.shape)) for leaf in tf.nest.flatten(template)]
        found = [(arrays[name].dtype, arrays[name].shape) for name in sorted(arrays)]
        if found != wanted:
            raise self._damaged(self._state_file, f"{len(found)} arrays that do not fit the {len(wanted)} of the state")
        return tf.nest.pack_sequence_as(template, [tf.constant(arrays[name]) for name in sorted(arrays)])

    def write_weights(self, look: int, weights: dict[str, np.ndarray]) -> None:
        write_arrays(self._weights_file(look), weights, {"identity": sha256_json(self._identity), "look": look})

    def weights(self, look: int) -> dict[str, np.ndarray]:
        """The weights of a look that has not been forgotten."""
        path = self._weights_file(look)
        arrays, facts = read_arrays(path)
        if (facts.get("identity"), facts.get("look")) != (sha256_json(self._identity), look):
            raise self._damaged(path, "it belongs to other settings or data, or to another look")
        return arrays

    def _damaged(self, path: Path, found: str) -> BadArtifact:
        return BadArtifact(f"{path} is damaged", found=found, hint=repair_hint(path))

    def _kept(self, looks: Sequence[dict[str, Any]], select: str) -> list[int]:
        """The looks whose weights may still be chosen; by rank, any may be."""
        if not looks:
            return []
        return list(range(len(looks))) if select == "rank" else [chosen_look(looks, select)]

    def forget(self, looks: Sequence[dict[str, Any]], select: str) -> None:
        """Remove the weights of looks that cannot be chosen any more."""
        with contextlib.suppress(OSError):  # what stays is removed when the stage is complete
            for look in set(range(len(looks))).difference(self._kept(looks, select)):
                self._weights_file(look).unlink(missing_ok=True)
