"""The course of a training stage, from its history and its looks at the validation rows."""

from itertools import accumulate

import numpy as np
import pyarrow as pa

from bayesnde_cli.artifacts.layout import RunLayout, repair_hint
from bayesnde_cli.artifacts.manifest import Manifest
from bayesnde_cli.artifacts.tables import read_table
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.report.binning import thinned
from bayesnde_cli.report.report_data import LossCurve, Training

_MOST_RECORDS = 400


def read_training(layout: RunLayout, manifest: Manifest) -> Training:
    """The losses and looks of a finished training stage. Phases count their steps from 0; here they count on."""
    path = layout.selection_file(manifest.stage)
    history = read_table(layout.history_file(manifest.stage), "history", ["phase", "epoch", "step", "loss"])
    selection = read_table(path, "selection", ["phase", "step", "is_chosen", "marginal", "marginal_se"])
    try:
        return _training(manifest, history, selection)
    except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
        found = f"it and the history are not of one training: {error}"
        raise BadArtifact(f"{path} is damaged", found=found, hint=repair_hint(path)) from error


def _training(manifest: Manifest, history: pa.Table, selection: pa.Table) -> Training:
    phases = list(dict.fromkeys([*history["phase"].to_pylist(), *selection["phase"].to_pylist()]))
    lengths = [max(_steps_of(phase, history), _steps_of(phase, selection)) for phase in phases]
    first_step = dict(zip(phases, accumulate(lengths, initial=0), strict=False))
    return Training(
        stage=manifest.stage,
        losses=tuple(_loss_curve(phase, history, first_step[phase]) for phase in phases),
        step=_numbers(selection["step"]) + [first_step[phase] for phase in selection["phase"].to_pylist()],
        log_density=_numbers(selection["marginal"]),
        se=_numbers(selection["marginal_se"]),
        chosen=selection["is_chosen"].to_pylist().index(True),
        selected_by=manifest.config.get("select", "marginal"),
        n_epochs=_epochs(history),
    )


def _loss_curve(phase: str, history: pa.Table, first_step: int) -> LossCurve:
    own = history.filter(pa.array([name == phase for name in history["phase"].to_pylist()], pa.bool_()))
    kept = thinned(own.num_rows, _MOST_RECORDS)
    return LossCurve(phase, first_step + _numbers(own["step"])[kept], _numbers(own["loss"])[kept])


def _epochs(history: pa.Table) -> int | None:
    last = history["epoch"].to_pylist()[-1] if history.num_rows else None
    return None if last is None else round(last)


def _steps_of(phase: str, table: pa.Table) -> int:
    pairs = zip(table["phase"].to_pylist(), table["step"].to_pylist(), strict=True)
    return max((step for name, step in pairs if name == phase), default=0)


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The column as float64, NaN for what is missing."""
    return np.array([np.nan if value is None else value for value in column.to_pylist()], np.float64)
