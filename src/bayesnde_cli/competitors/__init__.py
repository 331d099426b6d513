"""Competitors: other density estimators and outlier detectors on the same rows as the model.

Training rows fit them, and validation rows choose their settings and the better of two scalings. The evaluated rows are
only scored. Neural densities and roundtrip are imported when one is fitted.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from bayesnde_cli.competitors import plain
from bayesnde_cli.competitors.plain import Fit, Fitted, Keeper, by_class
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.rows import Rows
from bayesnde_cli.settings.stage_settings import NEURAL_BASELINES
from bayesnde_cli.tables.schema import Schema

DENSITIES: Mapping[str, Fit] = {
    "gaussian": plain.gaussian,
    "gaussian_mixture": plain.gaussian_mixture,
    "kernel_density": plain.kernel_density,
}
DETECTORS: Mapping[str, Fit] = {"one_class_svm": plain.one_class_svm, "isolation_forest": plain.isolation_forest}
# Detectors of `reproduce` only.
MORE_DETECTORS: Mapping[str, Fit] = {"distance": plain.distance, "blurred_kernels": plain.blurred_kernels}
PACKAGES = ("torch", "zuko", "normflows")  # of the neural densities
# A short fit, which chooses the scaling, takes this share of the steps.
_TRIAL_SHARE = 0.1


class Tables(NamedTuple):
    """The rows of a comparison."""

    train: Rows
    validation: Rows
    evaluated: Rows

    def standardise(self) -> "Tables":
        """The same rows with training columns of mean 0 and s.d. 1; the log-Jacobian grows accordingly."""
        mean, sd = self.train.x.mean(axis=0), self.train.x.std(axis=0)
        sd = np.where(sd > 0, sd, 1.0)
        shift = -np.log(sd).sum()
        return Tables(*(replace(rows, x=(rows.x - mean) / sd, log_jacobian=shift + rows.log_jacobian) for rows in self))


def make_spaces(tables: Tables, schema: Schema) -> dict[str, Tables]:
    """The rows in float64, in the units of the file with their noise, and in the model's space."""
    file, model = [], []
    for rows in tables:
        assert rows.values is not None
        file.append(Rows(schema.noisy(rows.values, rows.row_ids), y=rows.y))
        model.append(Rows(rows.x.astype(np.float64), y=rows.y, log_jacobian=rows.log_jacobian))
    return {"file": Tables(*file), "model": Tables(*model)}


class Method(NamedTuple):
    """How a competitor is fitted."""

    fit: Fit
    trial: Fit | None = None  # a short fit that chooses the scaling; None: the full fit, which is not repeated
    is_density: bool = True


PLAIN: Mapping[str, Method] = {name: Method(by_class(fit)) for name, fit in DENSITIES.items()} | {
    name: Method(by_class(fit), is_density=False) for name, fit in DETECTORS.items()
}


def make_methods(keeper: Keeper | None = None) -> dict[str, Method]:
    """All competitors by name; with a keeper, interrupted long fits resume."""
    mixture = partial(plain.gaussian_mixture, components=plain.MORE_COMPONENTS, most_rows=plain.MANY_ROWS)
    return {
        **PLAIN,
        "gaussian_mixture": Method(by_class(mixture)),
        **{name: Method(by_class(fit), is_density=False) for name, fit in MORE_DETECTORS.items()},
        **{
            name: Method(make_neural(name, 1.0, keeper), make_neural(name, _TRIAL_SHARE, keeper))
            for name in NEURAL_BASELINES
        },
        "roundtrip": Method(partial(_fit_roundtrip, keeper, False), partial(_fit_roundtrip, keeper, True)),
    }


def make_neural(name: str, share: float = 1.0, keeper: Keeper | None = None) -> Fit:
    """The fit of a neural density with a share of its steps."""

    def fit(train: Rows, validation: Rows, seed: int) -> Fitted:
        require_packages([name])
        from bayesnde_cli.competitors.neural import neural_fit

        return neural_fit(name, share, keeper)(train, validation, seed)

    return fit


def _fit_roundtrip(keeper: Keeper | None, is_trial: bool, train: Rows, validation: Rows, seed: int) -> Fitted:
    from bayesnde_cli.model.backend import load_tensorflow

    load_tensorflow()
    from bayesnde_cli.competitors.roundtrip import TRIAL, roundtrip_fit

    return roundtrip_fit(**(TRIAL if is_trial else {}), keeper=keeper)(train, validation, seed)


def require_packages(names: Sequence[str], option: str = "--baseline") -> None:
    """Refuse neural densities, before any long work, if their packages are not installed."""
    wanted = [name for name in names if name in NEURAL_BASELINES]
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if wanted and missing:
        raise BadUsage(
            f"{' '.join(f'{option} {name}' for name in dict.fromkeys(wanted))} needs packages that are not installed",
            found=f"no {', '.join(missing)}",
            hint="run `pip install 'bayesnde[baselines]'`, then the same command again",
        )


@dataclass(frozen=True)
class Competitor:
    """A fitted competitor and its scores of the evaluated rows."""

    log_density: np.ndarray  # (evaluated rows,) in the units of the file; the score of a detector
    is_density: bool
    chosen: dict[str, Any]  # settings, and `scaling`, the name of the space
    seconds_fit: float  # including the choice of the scaling
    seconds_score: float
    log_density_of: Callable[[Mapping[str, Tables]], np.ndarray]  # of the evaluated rows of other spaces


def fit_competitor(
    name: str,
    spaces: Mapping[str, Tables],
    *,
    seed: int,
    methods: Mapping[str, Method],
    class_names: Sequence[str] = (),
) -> Competitor:
    """A competitor, fitted in the space where the validation rows are likeliest; a detector takes the first space."""
    method, seed = methods[name], derive_seed(seed, name)
    started = time.perf_counter()
    standard = {space: tables.standardise() for space, tables in spaces.items()}
    scaling, fitted = next(iter(standard)), None
    if method.is_density and len(standard) > 1:
        fits = {space: (method.trial or method.fit)(*tables[:2], seed) for space, tables in standard.items()}
        scaling = max(fits, key=lambda space: _mean_log_density(fits[space], standard[space].validation))
        fitted = None if method.trial else fits[scaling]
    fitted = fitted or method.fit(*standard[scaling][:2], seed)
    fitted_at = time.perf_counter()
    log_density = _score(method, fitted, standard[scaling].evaluated)
    scored_at = time.perf_counter()
    chosen = fitted.chosen | {"scaling": scaling}
    if "classes" in chosen:
        chosen["classes"] = {class_names[index]: own for index, own in chosen["classes"].items()}
    return Competitor(
        log_density=log_density,
        is_density=method.is_density,
        chosen=chosen,
        seconds_fit=fitted_at - started,
        seconds_score=scored_at - fitted_at,
        log_density_of=lambda others: _score(method, fitted, others[scaling].standardise().evaluated),
    )


def _score(method: Method, fitted: Fitted, rows: Rows) -> np.ndarray:
    """Log-densities in the units of the file, or the scores of a detector."""
    return fitted.score(rows) + rows.log_jacobian if method.is_density else fitted.score(rows)


def _mean_log_density(fitted: Fitted, rows: Rows) -> float:
    """The mean log-density in the units of the file; -inf if it is not finite, so that it is never the best."""
    mean = float(np.mean(fitted.score(rows) + rows.log_jacobian))
    return mean if np.isfinite(mean) else -np.inf
