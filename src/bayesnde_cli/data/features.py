"""A feature's noise and its map into the model's space, by the user's rules."""

from collections.abc import Mapping, Sequence

import numpy as np

from bayesnde_cli.data.kinds import ColumnFacts, Kind
from bayesnde_cli.data.roles import listed, match_columns, quoted
from bayesnde_cli.data.scaling import (
    ColumnMap,
    Logit,
    Noise,
    fit_categorical,
    fit_lattice,
    fit_minmax,
    fit_mixture,
    fit_none,
    fit_standard,
)
from bayesnde_cli.data.scaling.logit import HIGHEST, LOWEST
from bayesnde_cli.errors import BadInput, BadUsage


def noise_rules(rules: Sequence[str], facts: Mapping[str, ColumnFacts]) -> dict[str, Noise]:
    """The dequantisation noise of each lattice and categorical column; a later rule overrides an earlier one."""
    discrete = [name for name, fact in facts.items() if fact.kind is not Kind.CONTINUOUS]
    noise: dict[str, Noise] = dict.fromkeys(discrete, Noise())
    for rule in rules:
        if rule == "auto":
            noise = dict.fromkeys(discrete, Noise())
        elif rule == "none":
            noise = {}
        else:
            pattern, bounds = _parse(rule)
            if pattern in facts and pattern not in discrete:
                raise BadUsage(
                    f"--dequantize {rule}: column '{pattern}' is continuous",
                    found=f"lattice or categorical: {', '.join(discrete) or 'no column'}",
                    hint=f"leave the rule out, or say --type {pattern}=lattice",
                )
            names = match_columns([pattern], list(facts), option="--dequantize", what="feature")
            noise |= {name: bounds for name in names if name in discrete}
    return noise


def logit_noise(rules: Sequence[str], facts: Mapping[str, ColumnFacts]) -> dict[str, Noise]:
    """The noise of columns under `--scale logit`; all must hold whole numbers from 0 to 255."""
    if any(rule != "auto" for rule in rules):
        raise BadUsage(
            "--scale logit has a noise of its own, U(0, 1)",
            found=f"rules: {', '.join(f'--dequantize {rule}' for rule in rules)}",
            hint="leave --dequantize out, or choose another --scale",
        )
    odd = [fact for fact in facts.values() if not _is_bytes(fact)]
    if odd:
        kinds = [
            f"{fact.name} ({fact.kind}{'' if fact.categories else f', {fact.minimum:g} to {fact.maximum:g}'})"
            for fact in odd
        ]
        raise BadInput(
            "--scale logit takes whole numbers from 0 to 255 only",
            found=f"columns: {listed(kinds)}",
            hint=f"choose another --scale, or leave such columns out: --drop {quoted(odd[0].name)}",
        )
    return dict.fromkeys(facts, Logit().noise)


def _is_bytes(fact: ColumnFacts) -> bool:
    return fact.kind is Kind.LATTICE and fact.minimum >= LOWEST and fact.maximum <= HIGHEST


def fit_map(
    fact: ColumnFacts, scale: str, noise: Noise | None, values: np.ndarray, *, fraction: np.ndarray,
    is_fitting: np.ndarray, is_choosing: np.ndarray,
) -> ColumnMap:  # fmt: skip
    """The map of one column with values (rows,): fitted to the rows `is_fitting`; `is_choosing` only chooses its size.

    `fraction` is the dequantisation noise of the rows, as uniform numbers.
    """
    if scale == "logit":
        return Logit()
    if scale == "marginal" and noise is not None and noise.width <= 1:
        if fact.kind is Kind.CATEGORICAL:
            return fit_categorical(
                values[is_fitting], values[is_choosing], n_categories=len(fact.categories), noise=noise
            )
        return fit_lattice(values[is_fitting], values[is_choosing], noise=noise)
    noisy = values if noise is None else noise.add(values, fraction)
    if scale == "marginal":
        return fit_mixture(noisy[is_fitting], noisy[is_choosing], noise=noise)
    if scale == "standard":
        return fit_standard(noisy[is_fitting], noise)
    if scale == "minmax":
        return fit_minmax(noisy[is_fitting], noise)
    return fit_none(noise)


def _parse(rule: str) -> tuple[str, Noise]:
    column, sign, bounds = rule.rpartition("=")
    try:
        low, high = (float(part) for part in bounds.split(","))
        if not sign or not column or not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise ValueError
    except ValueError:
        raise BadUsage(
            f"--dequantize {rule} is not a rule",
            found="rules: auto, none, COL=LOW,HIGH with LOW < HIGH",
            hint="for instance --dequantize age=-0.5,0.5",
        ) from None
    return column, Noise(low, high)
