"""Eight diagnostics of generated rows against held-out rows, and the rank that chooses a checkpoint by them.

The paper's S4; where it is silent, the details are those of its public code. Every diagnostic is a distance: smaller
is better. None needs the true density. Rows are (n, p) and (m, p), in the scale the model is trained in.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.spatial.distance import cdist, pdist
from sklearn.neighbors import NearestNeighbors

from bayesnde_cli.rng import generator

DIAGNOSTICS = (
    "rbf_mmd",
    "symmetric_kl",
    "sliced_wasserstein",
    "marginal_wasserstein",
    "ks",
    "correlation_error",
    "one_minus_lisi",
    "one_minus_sd_share",
)

MMD_ROWS = 2_000  # a side
MMD_WIDTHS = (0.25, 1.0, 4.0)  # squared bandwidths, times the median squared distance

KL_BINS = 80
KL_QUANTILES = (0.001, 0.999)  # the bins lie between these quantiles of the pooled column
KL_SHIFT = 1e-12  # added to every count

N_DIRECTIONS = 64
LISI_NEIGHBOURS = 30
SD_RATIO = (0.75, 1.25)  # a standard deviation is adequately reproduced when generated/real lies in here


def diagnose(real: np.ndarray, generated: np.ndarray, *, seed: int) -> dict[str, float]:
    """Every diagnostic by name; all infinite when a generated value is not finite, so that such a model comes last."""
    if not np.isfinite(generated).all():
        return dict.fromkeys(DIAGNOSTICS, np.inf)
    real, generated = np.asarray(real, np.float64), np.asarray(generated, np.float64)
    wasserstein, ks = column_distances(real, generated)
    found = {
        "rbf_mmd": rbf_mmd(real, generated, seed=seed),
        "symmetric_kl": symmetric_kl(real, generated),
        "sliced_wasserstein": sliced_distance(real, generated, seed=seed),
        "marginal_wasserstein": wasserstein.mean(),
        "ks": ks.mean(),
        "correlation_error": correlation_error(real, generated),
        "one_minus_lisi": 1.0 - mixing(real, generated),
        "one_minus_sd_share": 1.0 - sd_share(real, generated),
    }
    return {name: float(found[name]) for name in DIAGNOSTICS}


def diagnose_by_class(
    real: np.ndarray,
    generated: np.ndarray,
    *,
    real_class: np.ndarray,
    generated_class: np.ndarray,
    seed: int,
) -> dict[int, dict[str, float]]:
    """The diagnostics within each class that the real rows have. Classes are integers, (n,) and (m,)."""
    found = {}
    for label in np.unique(real_class).tolist():
        within = generated[generated_class == label]
        if not len(within):
            raise ValueError(f"expected generated rows of class {label}, got none")
        found[label] = diagnose(real[real_class == label], within, seed=seed)
    return found


def class_weighted(by_class: Mapping[int, Mapping[str, float]], real_class: np.ndarray) -> dict[str, float]:
    """The mean of each diagnostic over classes, weighted by how often the real rows have them (paper, S4)."""
    share = {label: float(np.mean(real_class == label)) for label in by_class}
    return {name: sum(share[label] * by_class[label][name] for label in by_class) for name in DIAGNOSTICS}


def percentile_ranks(candidates: Sequence[Mapping[str, float]], *, names: Sequence[str] = DIAGNOSTICS) -> np.ndarray:
    """The mean percentile rank of each candidate; the smallest is the paper's choice. (candidates,).

    mean over diagnostics m of r_m(e) = #{e' : d_m(e') < d_m(e)} / (#candidates - 1)        (paper, S4)

    NaN counts as infinite. One candidate alone has rank 0.
    """
    table = np.array([[candidate[name] for name in names] for candidate in candidates], np.float64)  # (e, m)
    table[np.isnan(table)] = np.inf
    n_smaller = [np.searchsorted(np.sort(column), column, side="left") for column in table.T]
    return np.mean(n_smaller, axis=0) / max(len(candidates) - 1, 1)


def rbf_mmd(real: np.ndarray, generated: np.ndarray, *, seed: int) -> float:
    """The squared maximum mean discrepancy, averaged over three Gaussian kernels exp(-|u - v|^2 / (2 h^2)).

    h^2 is 1/4, 1 and 4 times the median squared distance between the pooled rows; at most 2,000 rows a side, drawn
    without replacement.
    """
    x = _sample(real, generator(seed, "diagnostics", "mmd", "real"))
    y = _sample(generated, generator(seed, "diagnostics", "mmd", "generated"))
    # Each unequal pair once; k(u, u) = 1. Eight million of them in float32 take a quarter of the time of float64.
    pairs = [pdist(x, "sqeuclidean"), pdist(y, "sqeuclidean"), cdist(x, y, "sqeuclidean").ravel()]
    kernel = _kernel(np.concatenate(pairs).astype(np.float32))
    xx, yy, xy = (part.sum(dtype=np.float64) for part in np.split(kernel, [len(pairs[0]), -len(pairs[2])]))
    n, m = len(x), len(y)
    value = (2.0 * xx + n) / n**2 + (2.0 * yy + m) / m**2 - 2.0 * xy / (n * m)
    return value if np.isnan(value) else max(0.0, value)  # rows beyond float32 are no perfect match


def _sample(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if len(rows) <= MMD_ROWS:
        return rows
    return rows[np.sort(rng.choice(len(rows), MMD_ROWS, replace=False))]


def _kernel(squared: np.ndarray) -> np.ndarray:
    """The mean of the three kernels at the squared distances of all pairs."""
    # When more than half of the pairs are equal rows, the mean distance still tells the others apart.
    median = float(np.median(squared)) or float(squared.mean()) or 1.0
    widest = np.exp(squared * (-0.5 / (MMD_WIDTHS[-1] * median)))
    fourth = np.square(np.square(widest))  # 4 times narrower
    return (widest + fourth + np.square(np.square(fourth))) / 3.0


def symmetric_kl(real: np.ndarray, generated: np.ndarray) -> float:
    """The mean over columns of (KL(p|q) + KL(q|p)) / 2, p and q the histograms of the column on common bins.

    Values outside the bins are left out.
    """
    ends = np.quantile(np.concatenate([real, generated]), KL_QUANTILES, axis=0)  # (2, p)
    divergence = []
    for x, y, low, high in zip(real.T, generated.T, *ends, strict=True):
        # A column that is constant between the quantiles gets bins around its value, and is then all in one of them.
        edges = np.histogram_bin_edges([], KL_BINS, (low, high))
        p, q = (np.histogram(values, edges)[0] + KL_SHIFT for values in (x, y))
        p, q = p / p.sum(), q / q.sum()
        divergence.append(0.5 * np.sum((p - q) * np.log(p / q)))
    return float(np.mean(divergence))


def column_distances(real: np.ndarray, generated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Between the distribution functions F and G of each column, W1 = ∫|F - G| and KS = max |F - G|. (p,) each."""
    pooled = np.concatenate([real, generated])  # (n + m, p)
    jump = np.concatenate([np.full(len(real), 1.0 / len(real)), np.full(len(generated), -1.0 / len(generated))])
    order = np.argsort(pooled, axis=0, kind="stable")
    width = np.diff(np.take_along_axis(pooled, order, axis=0), axis=0)  # (n + m - 1, p)
    gap = np.abs(np.cumsum(jump[order], axis=0)[:-1])  # |F - G| right of each value but the last
    # Between equal values F - G has not finished its jump.
    return np.sum(gap * width, axis=0), np.max(np.where(width > 0.0, gap, 0.0), axis=0)


def sliced_distance(real: np.ndarray, generated: np.ndarray, *, seed: int) -> float:
    """The mean W1 over 64 random directions, of rows standardised by the pooled moments."""
    pooled = np.concatenate([real, generated])
    scale = pooled.std(axis=0)
    scale[scale == 0.0] = 1.0
    directions = generator(seed, "diagnostics", "directions").standard_normal((real.shape[1], N_DIRECTIONS))
    # W1 does not see a common shift, so the mean need not be taken off.
    directions /= np.linalg.norm(directions, axis=0) * scale[:, None]
    wasserstein, _ = column_distances(real @ directions, generated @ directions)
    return float(wasserstein.mean())


def correlation_error(real: np.ndarray, generated: np.ndarray) -> float:
    """The Frobenius norm of the difference of the correlation matrices, over sqrt(p)."""
    return float(np.linalg.norm(_correlation(real) - _correlation(generated)) / np.sqrt(real.shape[1]))


def _correlation(x: np.ndarray) -> np.ndarray:
    """(n, p) -> (p, p); 0 for a constant column, also with itself."""
    centred = x - x.mean(axis=0)
    norm = np.linalg.norm(centred, axis=0)
    centred /= np.where(norm > 0.0, norm, 1.0)
    return centred.T @ centred


def mixing(real: np.ndarray, generated: np.ndarray) -> float:
    """The mean local inverse Simpson's index of the source label, minus 1: from 0 (apart) to 1 (equal halves).

    Around each row of the union, 1 / (s^2 + (1 - s)^2), where s is the share of real rows among its 30 nearest others,
    all weighted equally (Korsunsky et al. 2019 weight them by distance). With n and m unequal, two samples of one
    distribution stay below 1; all checkpoints alike, so the rank does not change.
    """
    pooled = np.concatenate([real, generated])
    n_neighbours = min(LISI_NEIGHBOURS, len(pooled) - 1)
    neighbours = NearestNeighbors(n_neighbors=n_neighbours).fit(pooled).kneighbors(return_distance=False)
    share = np.mean(neighbours < len(real), axis=1)
    return float(np.mean(1.0 / (share**2 + (1.0 - share) ** 2)) - 1.0)


def sd_share(real: np.ndarray, generated: np.ndarray) -> float:
    """The share of columns whose standard deviation, generated over real, lies in [0.75, 1.25]."""
    real_sd, generated_sd = real.std(axis=0), generated.std(axis=0)
    low, high = SD_RATIO
    # Multiplied out, so that a constant column is reproduced by a constant one and by nothing else.
    return float(np.mean((generated_sd >= low * real_sd) & (generated_sd <= high * real_sd)))
