"""Members of a stack in closed form, and the weights of the stack p(x) = sum_k w_k p_k(x).

A fit takes training rows, validation rows that choose its settings, and a seed; columns are standardised. Fewer than
`FEW_ROWS` validation rows choose badly, so the training rows then choose with them: by cross-validation, or by leaving
one row out. Exact copies of a row are left out together, or the narrowest mixture would win by knowing them.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from bayesnde_cli import stopping
from bayesnde_cli.model.normal_mixtures import ClassMixtures, NormalMixture, log_sum_exp, squared_distances
from bayesnde_cli.model.stack import GAUSSIAN_MIXTURE, KERNELS, MODEL, Stack
from bayesnde_cli.rng import derive_seed, generator
from bayesnde_cli.rows import Rows, some_rows

FEW_ROWS = 200
_N_FOLDS = 5


class FittedMixture(NamedTuple):
    """A fitted mixture and the settings that were chosen."""

    mixture: NormalMixture
    chosen: dict[str, Any]


# (training rows, validation rows, seed) -> the fitted mixture
MixtureFit = Callable[[Rows, Rows, int], FittedMixture]


def fit_classes(
    fit: MixtureFit, train: Rows, validation: Rows, seed: int
) -> tuple[ClassMixtures, dict[int, dict[str, Any]]]:
    """One fit for each class with training rows, or a single one without classes; and what each chose, by class."""
    if train.classes is None or validation.classes is None:
        fitted = fit(train, validation, seed)
        return ClassMixtures((fitted.mixture,)), {0: fitted.chosen}
    fits = {
        index: fit(
            train.take(train.classes == index), validation.take(validation.classes == index), derive_seed(seed, index)
        )
        for index in np.unique(train.classes).tolist()
    }
    mixtures = tuple(fits[index].mixture if index in fits else None for index in range(train.n_classes))
    return ClassMixtures(mixtures), {index: fitted.chosen for index, fitted in fits.items()}


# Gaussian mixture

# Added to the diagonal of covariances, in standardised units, so that collinear columns have a density.
RIDGE = 1e-6
# Numbers of components and kinds of covariance to choose from.
COMPONENTS = (1, 2, 3, 5, 8, 12, 20, 32, 50)
COVARIANCES = ("full", "diag")
# Larger numbers of components are not tried after this many in a row without improvement.
_PATIENCE = 2
# Least number of rows per component.
_LEAST_ROWS = 5
# EM passes over all training rows again and again, so it gets at most this many.
MOST_ROWS = 10_000


def fit_gaussian_mixture(
    train: Rows,
    validation: Rows,
    seed: int,
    *,
    components: Sequence[int] = COMPONENTS,
    most_rows: int = MOST_ROWS,
) -> FittedMixture:
    """The mixture of the kind and size with the highest mean log-density on held-out rows, fitted to training rows."""
    train = train.take(some_rows(len(train), most_rows, seed))
    x = train.x.astype(np.float64)
    pairs = [(x, validation.x)] if len(validation) >= FEW_ROWS else list(_folds([train, validation], seed))
    most = max(1, min([len(x), *(len(fitted) for fitted, _ in pairs)]) // _LEAST_ROWS)
    best, best_score = ("full", 1), -np.inf
    for covariance in COVARIANCES:
        own_best, n_misses = -np.inf, 0
        for n_components in components:
            if n_misses >= _PATIENCE or n_components > most:
                break
            score = _score_normals(pairs, n_components, covariance, seed)
            n_misses = 0 if score > own_best else n_misses + 1
            own_best = max(score, own_best)
            if score > best_score:
                best, best_score = (covariance, n_components), score
    covariance, n_components = best
    try:
        mixture = _fit_normals(x, n_components, covariance, seed)
    except ValueError:  # see `_score_normals`
        covariance, n_components = "diag", 1
        mixture = _fit_normals(x, n_components, covariance, seed)
    chosen = {"components": n_components, "covariance": covariance, "n_fit_rows": len(x)}
    return FittedMixture(mixture, chosen)


def _score_normals(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], n_components: int, covariance: str, seed: int
) -> float:
    """The mean log-density of all held-out rows; -inf without any, and if a mixture cannot be fitted."""
    scores = []
    for fitted, held_out in pairs:
        stopping.check()
        try:
            scores.append(_fit_normals(fitted, n_components, covariance, seed).log_density(held_out))
        except ValueError:
            # Cells beyond 1e6 or so, as in a row far out or without scaling: next to them the ridge is lost to
            # rounding, and a covariance may have no Cholesky factor (NumPy's LinAlgError is a ValueError, as is
            # scikit-learn's error).
            return -np.inf
    return float(np.mean(np.concatenate(scores))) if scores else -np.inf


def fit_gaussian(x: np.ndarray) -> NormalMixture:
    """The Gaussian of maximum likelihood."""
    return _fit_normals(x.astype(np.float64), 1, "full", 0)


def _fit_normals(x: np.ndarray, n_components: int, covariance: str, seed: int) -> NormalMixture:
    """The mixture of maximum likelihood: in closed form for one component, else by EM."""
    # One thread: the products are small, and with two threads they took six times as long. Nor do the last bits of the
    # result depend on the number of threads.
    with threadpool_limits(1):
        if n_components > 1:
            mixture = _run_em(x, n_components, covariance, seed)
            weights, means, covariances = mixture.weights_, mixture.means_, mixture.covariances_
        else:
            weights, means = np.ones(1), x.mean(axis=0, keepdims=True)
            if covariance == "full":
                covariances = ((x - means).T @ (x - means) / len(x) + RIDGE * np.eye(x.shape[1]))[None]
            else:
                covariances = x.var(axis=0, keepdims=True) + RIDGE
    scales = np.linalg.cholesky(covariances) if covariance == "full" else np.sqrt(covariances)
    return NormalMixture(np.log(weights), means, scales)


def _run_em(x: np.ndarray, n_components: int, covariance: str, seed: int) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(
        n_components,
        covariance_type=covariance,
        reg_covar=RIDGE,
        random_state=derive_seed(seed, "mixture", covariance, n_components) % 2**32,
    )
    with warnings.catch_warnings():
        # No convergence, or fewer distinct rows than components: the held-out rows decide.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return mixture.fit(x)


def _folds(parts: Sequence[Rows], seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows to fit and the rows held out of each fold; none if all rows are copies of one."""
    x, row_ids = np.concatenate([rows.x for rows in parts]).astype(np.float64), distinct_ids(*parts)
    n_distinct = int(row_ids.max()) + 1
    fold = generator(seed, "folds").permutation(n_distinct)[row_ids] % _N_FOLDS
    for index in range(min(_N_FOLDS, n_distinct) if n_distinct > 1 else 0):
        yield x[fold != index], x[fold == index]


def distinct_ids(*parts: Rows) -> np.ndarray:
    """A number for each row of all parts, (n,), the same for exact copies: of values, as their noise may differ."""
    values = [rows.values for rows in parts if rows.values is not None]
    assert len(values) in (0, len(parts)), "values of some rows only"
    cells = values or [rows.x for rows in parts]
    return np.unique(np.concatenate(cells), axis=0, return_inverse=True)[1].ravel()


# Kernel density: a spherical normal on every training row.

# Bandwidths in standardised units: from 1/256 to 4, a factor of sqrt 2 apart.
BANDWIDTHS = tuple(2.0 ** (k / 2) for k in range(-16, 5))
# Where all rows are copies of one, nothing can choose.
_USUAL_BANDWIDTH = 1.0
# Every row is compared with every kernel: largest number of kernels, and of rows that choose the bandwidth.
KERNEL_MOST_ROWS = 10_000
MOST_CHOOSING_ROWS = 1_000
_ROWS_AT_ONCE = 256


def fit_kernels(train: Rows, validation: Rows, seed: int, *, most_rows: int = KERNEL_MOST_ROWS) -> FittedMixture:
    """The kernel density with the bandwidth of the highest mean log-density on held-out rows."""
    train = train.take(some_rows(len(train), most_rows, seed))
    kernels = train.x.astype(np.float64)
    if len(validation) >= FEW_ROWS:
        scores = score_bandwidths(validation.x[some_rows(len(validation), MOST_CHOOSING_ROWS, seed)], kernels)
    else:
        x, row_ids = np.concatenate([kernels, validation.x]), distinct_ids(train, validation)
        held_out = some_rows(len(x), MOST_CHOOSING_ROWS, seed)
        scores = score_bandwidths(x[held_out], x, row_ids=(row_ids[held_out], row_ids))
    mean = scores.mean(axis=1)
    bandwidth = BANDWIDTHS[int(np.argmax(mean))] if np.isfinite(mean).any() else _USUAL_BANDWIDTH
    return FittedMixture(kernel_mixture(kernels, bandwidth), {"bandwidth": bandwidth, "n_fit_rows": len(kernels)})


def kernel_mixture(kernels: np.ndarray, bandwidth: float) -> NormalMixture:
    """The kernel density around rows (m, p)."""
    m, p = kernels.shape
    return NormalMixture(np.full(m, -np.log(m)), kernels.astype(np.float64), np.full((1, p), bandwidth))


def score_bandwidths(
    x: np.ndarray, kernels: np.ndarray, *, row_ids: tuple[np.ndarray, np.ndarray] | None = None
) -> np.ndarray:
    """The log-density of rows (n, p) around kernels (m, p) for each of `BANDWIDTHS`, up to a constant. (bandwidths, n).

    Distances are computed once. With the ids of rows and of kernels, kernels with the id of a row do not count for it.
    """
    scores = np.empty((len(BANDWIDTHS), len(x)))
    for start in range(0, len(x), _ROWS_AT_ONCE):
        stopping.check()
        block = slice(start, start + _ROWS_AT_ONCE)
        distance = squared_distances(x[block].astype(np.float64), kernels)
        if row_ids is not None:
            distance[row_ids[0][block, None] == row_ids[1]] = np.inf
        for index, h in enumerate(BANDWIDTHS):
            scores[index, block] = log_sum_exp(distance * (-0.5 / h**2), axis=1) - x.shape[1] * np.log(h)
    return scores


# Stacking (Smyth and Wolpert 1999): the weights are those of a mixture whose components stay as they are.

# Prior of the weights: as if each member were the source of this many more rows. It keeps a member of a small table:
# with fewer than about 100 rows no weight falls below the least one.
PSEUDO_ROWS = 1.0
# Members with smaller weights are dropped: they would cost time and change nothing.
LEAST_WEIGHT = 0.01
# The search ends when no weights could gain this much more, in nats per row.
_TOLERANCE = 1e-8
_MOST_STEPS = 1_000


def stack_weights(log_densities: np.ndarray, *, pseudo_rows: float = PSEUDO_ROWS) -> np.ndarray:
    """The log-weights of members with these log-densities (members, n) of validation rows, (members,); -inf: dropped.

    They maximise sum_i log sum_k w_k p_k(x_i) + c sum_k log w_k: a Dirichlet prior with 1 + c for each member. NaN
    is a density of 0, and rows without any density do not count. A member stays if a row has no other density.

    In a small table the same validation rows may have chosen a member's settings, which favours that member a little;
    closed-form members then choose theirs on training rows, too, and the prior holds the weights together.
    """
    has_density = np.isfinite(log_densities)
    some = has_density.any(axis=0)
    log_densities, has_density = np.where(has_density, log_densities, -np.inf)[:, some], has_density[:, some]
    kept = np.arange(len(log_densities))
    while True:
        weights = _maximise(log_densities[kept], pseudo_rows)
        is_alone = has_density[kept] & (has_density[kept].sum(axis=0) == 1)
        droppable = np.flatnonzero((weights < LEAST_WEIGHT) & ~is_alone.any(axis=1))
        if not len(droppable):
            break
        kept = np.delete(kept, droppable[np.argmin(weights[droppable])])
    log_weights = np.full(len(log_densities), -np.inf)
    log_weights[kept] = np.log(weights)
    return log_weights


def _maximise(log_densities: np.ndarray, pseudo_rows: float) -> np.ndarray:
    """The weights (members,) at the maximum: the higher of an EM step and a Newton step, again and again.

    EM alone takes 10,000 steps where members are much alike. The objective is concave: with its gradient g, no weights
    gain more than max_k g_k - sum_k w_k g_k, and sum_k w_k g_k is the number of rows and pseudo-rows.
    """
    densities = np.exp(log_densities - log_densities.max(axis=0))
    total = densities.shape[1] + pseudo_rows * len(densities)

    def objective(weights: np.ndarray) -> float:
        return float(np.log(weights @ densities).sum() + pseudo_rows * np.log(weights).sum())

    weights = np.full(len(densities), 1.0 / len(densities))
    for _ in range(_MOST_STEPS):
        shares = densities / (weights @ densities)
        gradient = shares.sum(axis=1) + pseudo_rows / weights
        if gradient.max() - total <= _TOLERANCE * total:
            break
        curvature = shares @ shares.T + np.diag(pseudo_rows / weights**2)
        newton = weights + np.linalg.solve(curvature, gradient - total)
        weights = weights * gradient / total  # EM
        if newton.min() > 0.0 and objective(newton / newton.sum()) > objective(weights):
            weights = newton / newton.sum()
    return weights


def fit_stack(
    train: Rows, validation: Rows, log_density: np.ndarray, seed: int
) -> tuple[Stack, dict[str, dict[int, dict[str, Any]]]]:
    """A stack of the fitted model, which has this log-density at the validation rows, and of the members above.

    With it, the settings that each member chose, by class. The members are fitted to standardised columns, whatever the
    scaling of the model's space. The fitted model stays, with the least weight, even if the others are better at nearly
    all rows.
    """
    fits: dict[str, MixtureFit] = {GAUSSIAN_MIXTURE: fit_gaussian_mixture, KERNELS: fit_kernels}
    train = train.take(some_rows(len(train), MOST_ROWS * max(1, train.n_classes), seed))
    mean, sd = train.x.mean(axis=0, dtype=np.float64), train.x.std(axis=0, dtype=np.float64)
    sd = np.where(sd > 0.0, sd, 1.0)
    to_fit, to_choose = (replace(rows, x=(rows.x - mean) / sd) for rows in (train, validation))
    fitted = {name: fit_classes(fit, to_fit, to_choose, derive_seed(seed, name)) for name, fit in fits.items()}
    mixtures = {name: own.rescale(mean, sd) for name, (own, _) in fitted.items()}
    log_densities = np.array([log_density, *(own.log_density(validation) for own in mixtures.values())])
    weights = np.exp(stack_weights(log_densities))
    weights[0] = max(weights[0], LEAST_WEIGHT)
    named = dict(zip((MODEL, *mixtures), (weights / weights.sum()).tolist(), strict=True))
    kept = {name: weight for name, weight in named.items() if weight > 0.0}
    stack = Stack(kept, {name: own for name, own in mixtures.items() if name in kept})
    return stack, {name: chosen for name, (_, chosen) in fitted.items() if name in kept}
