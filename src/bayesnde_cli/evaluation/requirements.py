"""Bars that figures must clear: `truth.spearman>=0.97`."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bayesnde_cli.config import nearest
from bayesnde_cli.errors import BadUsage, RequirementNotMet, escaped

_SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
# The last sign counts: a class may be called a>b.
_FORM = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=|==|>|<)\s*(?P<value>[^<>=]+?)\s*", re.DOTALL)

# What there is to ask of sections that rows may not have; names of others depend on the run.
_SECTIONS = {
    "truth": ("n", "spearman", "pearson", "rmse", "mean_difference"),
    "outliers": ("n", "n_outliers", "precision_at_k", "auroc", "average_precision"),
}


class Requirement(NamedTuple):
    """A bar: the figure of that name must be so."""

    name: str
    sign: str
    value: float

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {self.value:g}"

    def is_met(self, found: float) -> bool:
        return _SIGNS[self.sign](found, self.value)


def parse_requirement(text: str) -> Requirement:
    """The requirement that the user wrote."""
    match = _FORM.fullmatch(text)
    try:
        if match is None or match["name"][-1] in "=!<>~":  # no figure is called so: another sign was meant
            raise ValueError
        value = float(match["value"])
        if value != value:
            raise ValueError
    except ValueError:
        raise BadUsage(
            f"--require {escaped(text)} is not of the form NAME OP VALUE",
            found=f"OP is one of {' '.join(_SIGNS)}, VALUE a number",
            hint="for instance --require 'mean_log_density>=-4.1'",
        ) from None
    return Requirement(match["name"], match["sign"], value)


def check_requirements(requirements: Sequence[Requirement], metrics: Mapping[str, Any]) -> None:
    """Nothing, if all are met; `BadUsage` for a name that is no figure, else `RequirementNotMet`."""
    figures = dict(figure_names(metrics))
    for section in _SECTIONS.keys() & figures.keys():  # None, and not a mapping
        del figures[section]
        figures |= {f"{section}.{name}": None for name in _SECTIONS[section]}
    for requirement in requirements:
        if requirement.name not in figures and not _is_of_nothing(requirement.name, figures):
            _refuse_unknown(requirement.name, list(figures))
    missed = [line for line in (_miss(item, figures.get(item.name)) for item in requirements) if line]
    if missed:
        n = len(requirements)
        raise RequirementNotMet(
            f"{len(missed)} of {n} requirements {'is' if len(missed) == 1 else 'are'} not met" if n > 1
            else "the requirement is not met",
            found=missed,
            hint="see all figures with --json",
        )  # fmt: skip


def figure_names(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """The dotted name of every number, and of every one that is missing (None)."""
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            yield from figure_names(value, f"{prefix}{key}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield f"{prefix}{key}", value


def _is_of_nothing(name: str, figures: Mapping[str, float | None]) -> bool:
    """Whether a name lies in a section that these rows do not have, as `baselines.gaussian.gain` without baselines."""
    parts = name.split(".")
    return any(figures.get(".".join(parts[:n]), 0.0) is None for n in range(1, len(parts)))


def _miss(requirement: Requirement, found: float | None) -> str | None:
    """What is wrong, in a line; None if nothing is."""
    if found is None:
        return f"{requirement.name} has no value here, wanted {requirement.sign} {requirement.value:g}"
    if requirement.is_met(found):
        return None
    gap = abs(found - requirement.value)
    return f"{requirement.name} is {found:.6g}, wanted {requirement.sign} {requirement.value:g}: missed by {gap:.3g}"


def _refuse_unknown(name: str, names: Sequence[str]) -> None:
    match = nearest(name, names)
    raise BadUsage(
        f"--require: there is no figure '{escaped(name)}'",
        found=f"figures: {', '.join(names)}",
        hint=f"did you mean '{match}'?" if match else "use one of the figures above",
    )
