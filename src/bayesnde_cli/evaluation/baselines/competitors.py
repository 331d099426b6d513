"""Competitors: each has the same rows as the model, and the same choice of how columns are scaled."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bayesnde_cli.evaluation.baselines.detectors import distance, isolation_forest, one_class_svm
from bayesnde_cli.evaluation.baselines.fitted import Fit, FitParts, FittedParts, by_class
from bayesnde_cli.evaluation.baselines.gaussian import gaussian
from bayesnde_cli.evaluation.baselines.kept import Keeper
from bayesnde_cli.evaluation.baselines.kernel import blurred_kernels, kernel_density
from bayesnde_cli.evaluation.baselines.mixture import MANY_ROWS, MORE_COMPONENTS, gaussian_mixture
from bayesnde_cli.evaluation.baselines.neural import NEURAL, neural
from bayesnde_cli.evaluation.baselines.parts import Part, Parts
from bayesnde_cli.evaluation.figures import Figures
from bayesnde_cli.rng import derive_seed

DENSITIES: Mapping[str, Fit] = {
    "gaussian": gaussian,
    "gaussian_mixture": gaussian_mixture,
    "kernel_density": kernel_density,
}
DETECTORS: Mapping[str, Fit] = {"one_class_svm": one_class_svm, "isolation_forest": isolation_forest}
# What `reproduce` compares with beside them.
MORE_DETECTORS: Mapping[str, Fit] = {"distance": distance, "blurred_kernels": blurred_kernels}
# A short fit, which chooses among spaces, takes this share of the steps of the whole one.
_TRIAL = 0.1


@dataclass(frozen=True)
class Method:
    """How a competitor is fitted. `trial` is a short fit that stands for the whole one where a space is chosen."""

    fit: FitParts
    trial: FitParts | None = None  # None: the whole fit, which is then not repeated
    is_density: bool = True


@dataclass(frozen=True)
class Competitor:
    """A fitted competitor and what it says of the evaluated rows."""

    log_density: np.ndarray  # (evaluated rows,) in the units of the file; of a detector its score
    validation: float | None  # mean log-density of the validation rows in the units of the file; a detector has none
    chosen: Figures  # settings that were found, and `scaling`, the name of the space
    seconds_fit: float  # with the choice of the space
    seconds_score: float
    log_density_of: Callable[[Mapping[str, Parts]], np.ndarray]  # of others that are to be evaluated


def competitors(keeper: Keeper | None = None) -> dict[str, Method]:
    """All of this room by name; with a keeper, neural ones go on where they were stopped."""
    mixture = partial(gaussian_mixture, components=MORE_COMPONENTS, most_rows=MANY_ROWS)
    return (
        {name: Method(by_class(fit)) for name, fit in DENSITIES.items()}
        | {"gaussian_mixture": Method(by_class(mixture))}
        | {name: Method(neural(name, keeper=keeper), neural(name, share=_TRIAL, keeper=keeper)) for name in NEURAL}
        | {name: Method(by_class(fit), is_density=False) for name, fit in {**DETECTORS, **MORE_DETECTORS}.items()}
    )


COMPETITORS = competitors()


def competitor(
    name: str, spaces: Mapping[str, Parts], *, seed: int, methods: Mapping[str, Method] = COMPETITORS
) -> Competitor:
    """A competitor by name, fitted in the space where the validation rows are likeliest; `methods` may hold others.

    Columns are standardised by the training rows of each space. A detector takes the first space.
    """
    method, seed = methods[name], derive_seed(seed, name)
    begun = time.perf_counter()
    standard = {space: parts.standardised() for space, parts in spaces.items()}
    scaling, fitted = _best(method, standard, seed) if method.is_density else (next(iter(standard)), None)
    parts = standard[scaling]
    fitted = fitted or method.fit(parts.train, parts.validation, seed)
    seconds_fit = time.perf_counter() - begun
    score = fitted.score(parts.evaluated)
    seconds_score = time.perf_counter() - begun - seconds_fit

    def log_density_of(others: Mapping[str, Parts]) -> np.ndarray:
        part = others[scaling].standardised().evaluated
        return part.in_file(fitted.score(part)) if method.is_density else fitted.score(part)

    return Competitor(
        log_density=parts.evaluated.in_file(score) if method.is_density else score,
        validation=mean_in_file(fitted, parts.validation) if method.is_density else None,
        chosen=with_class_names(fitted.chosen, parts.class_names) | {"scaling": scaling},
        seconds_fit=seconds_fit,
        seconds_score=seconds_score,
        log_density_of=log_density_of,
    )


def _best(method: Method, spaces: Mapping[str, Parts], seed: int) -> tuple[str, FittedParts | None]:
    """The space where the validation rows are likeliest, and the fit there if it is a whole one."""
    if len(spaces) == 1:
        return next(iter(spaces)), None
    fit = method.trial or method.fit
    tried = {space: fit(parts.train, parts.validation, seed) for space, parts in spaces.items()}
    means = {space: mean_in_file(fitted, spaces[space].validation) for space, fitted in tried.items()}
    scaling = max(means, key=lambda space: means[space])
    return scaling, None if method.trial else tried[scaling]


def mean_in_file(fitted: FittedParts, part: Part) -> float:
    """The mean log-density of rows in the units of the file; -inf if it is no number, so that it is never the best."""
    mean = float(np.mean(part.in_file(fitted.score(part))))
    return mean if np.isfinite(mean) else -np.inf


def with_class_names(chosen: Figures, names: Sequence[str]) -> Figures:
    """What was chosen, with experts under the names of their classes."""
    if "classes" not in chosen:
        return chosen
    return chosen | {"classes": {names[index]: found for index, found in chosen["classes"].items()}}
