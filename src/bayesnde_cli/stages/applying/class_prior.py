"""What is known of a row's class before its columns are looked at: `--prior`."""

import math

import numpy as np

from bayesnde_cli.config import nearest_hint
from bayesnde_cli.data.roles import listed
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.stages.applying.fitted_run import FittedRun

_EXAMPLE = "give training, uniform, or a weight for every class: NAME=VALUE,NAME=VALUE,…"


def class_prior(run: FittedRun, text: str) -> np.ndarray:
    """The probability of each class, (classes,): as in training, all alike, or by the weights given for each."""
    if text == "training":
        return run.class_shares
    if text == "uniform":
        return np.full(len(run.classes), 1.0 / len(run.classes))
    weights = _weights(run.classes, text)
    lacking = [name for name in run.classes if name not in weights]
    if lacking:
        raise BadUsage(
            f"--prior names {len(weights)} of {len(run.classes)} classes",
            found=f"missing: {listed(lacking)}",
            hint="give every class a weight; 0 rules a class out",
        )
    total = math.fsum(weights.values())
    if not total > 0:
        raise BadUsage("--prior rules every class out", found=f"--prior {text}", hint="give one class a weight")
    return np.array([weights[name] for name in run.classes]) / total


def _weights(classes: tuple[str, ...], text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, sign, number = (piece.strip() for piece in part.rpartition("="))
        if not sign:
            raise BadUsage(f"--prior cannot be '{text}'", found=f"'{part}' is no NAME=VALUE", hint=_EXAMPLE)
        if name not in classes:
            raise BadUsage(
                f"--prior: there is no class '{name}'",
                found=f"classes: {listed(classes)}",
                hint=nearest_hint(name, classes, "use one of the classes"),
            )
        if name in weights:
            raise BadUsage(f"--prior names class '{name}' twice", found=f"--prior {text}", hint="name it once")
        weights[name] = _weight(name, number)
    return weights


def _weight(name: str, number: str) -> float:
    try:
        weight = float(number)
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError
    except ValueError:
        raise BadUsage(
            f"--prior: '{number}' is no weight of class '{name}'",
            found="a weight is a number, 0 or more",
            hint=_EXAMPLE,
        ) from None
    return weight
