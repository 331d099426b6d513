"""Generated rows against real ones: their classes, and the paper's eight diagnostics (S4).

The diagnostics compare generated rows (m, p) with held-out rows (n, p), in the scale in which the model is trained
(where the paper is silent, the details are those of its public code). Each is a distance: smaller is better.
"""

import numpy as np
from scipy.spatial.distance import cdist, pdist

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
KL_BINS = 80
KL_QUANTILES = (0.001, 0.999)  # the bins lie between these quantiles of the pooled column
KL_SHIFT = 1e-12  # added to every count
N_DIRECTIONS = 64
LISI_NEIGHBOURS = 30
SD_RATIO = (0.75, 1.25)  # generated over real standard deviation that counts as reproduced


def labels_like(y: np.ndarray | None, n: int) -> np.ndarray | None:
    """About n one-hot labels with the class shares of y, at least one of each class in it."""
    if y is None:
        return None
    counts = y.sum(axis=0)
    repeats = np.where(counts > 0, np.maximum(1, np.round(n * counts / len(y))), 0).astype(int)
    return np.repeat(np.eye(y.shape[1], dtype=np.float32), repeats, axis=0)


def diagnose(real: np.ndarray, generated: np.ndarray, *, seed: int) -> dict[str, float]:
    """Every diagnostic by name; all infinite if a generated value is not finite, so that such a model ranks last."""
    if not np.isfinite(generated).all():
        return dict.fromkeys(DIAGNOSTICS, np.inf)
    real, generated = np.asarray(real, np.float64), np.asarray(generated, np.float64)
    wasserstein, ks = column_distances(real, generated)
    found = (
        rbf_mmd(real, generated, seed=seed),
        symmetric_kl(real, generated),
        sliced_distance(real, generated, seed=seed),
        wasserstein.mean(),
        ks.mean(),
        correlation_error(real, generated),
        1.0 - mixing(real, generated),
        1.0 - sd_share(real, generated),
    )
    return {name: float(value) for name, value in zip(DIAGNOSTICS, found, strict=True)}


def diagnose_by_class(
    real: np.ndarray, generated: np.ndarray, real_y: np.ndarray | None, generated_y: np.ndarray | None, *, seed: int
) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
    """The diagnostics within each class of the real rows, and their mean weighted by class shares (paper, S4).

    Classes are one-hot, (n, classes) and (m, classes); without them all rows are compared.
    """
    if real_y is None or generated_y is None:
        return diagnose(real, generated, seed=seed), {}
    real_class, generated_class = real_y.argmax(axis=1), generated_y.argmax(axis=1)
    labels, counts = np.unique(real_class, return_counts=True)
    by_class = {
        label: diagnose(real[real_class == label], generated[generated_class == label], seed=seed)
        for label in labels.tolist()
    }
    shares = (counts / len(real)).tolist()
    mean = {
        name: sum(share * own[name] for share, own in zip(shares, by_class.values(), strict=True))
        for name in DIAGNOSTICS
    }
    return mean, by_class


def rbf_mmd(real: np.ndarray, generated: np.ndarray, *, seed: int) -> float:
    """The squared maximum mean discrepancy, averaged over three Gaussian kernels exp(-|u - v|^2 / (2 h^2)).

    h^2 is 1/4, 1 and 4 times the median squared distance between the pooled rows; at most 2,000 rows a side, drawn
    without replacement.
    """

    def sample(rows: np.ndarray, name: str) -> np.ndarray:
        if len(rows) <= MMD_ROWS:
            return rows
        rng = generator(seed, "diagnostics", "mmd", name)
        return rows[np.sort(rng.choice(len(rows), MMD_ROWS, replace=False))]

    x, y = sample(real, "real"), sample(generated, "generated")
    # Each unequal pair once; k(u, u) = 1. Eight million of them in float32 take a quarter of the time of float64.
    pairs = [pdist(x, "sqeuclidean"), pdist(y, "sqeuclidean"), cdist(x, y, "sqeuclidean").ravel()]
    squared = np.concatenate(pairs).astype(np.float32)
    # If more than half of the pairs are equal rows, the median is 0 and the mean distance takes its place.
    median = float(np.median(squared)) or float(squared.mean()) or 1.0
    widest = np.exp(squared * (-0.5 / (4.0 * median)))
    fourth = np.square(np.square(widest))  # 4 times narrower
    kernel = (widest + fourth + np.square(np.square(fourth))) / 3.0
    xx, yy, xy = (part.sum(dtype=np.float64) for part in np.split(kernel, [len(pairs[0]), -len(pairs[2])]))
    n, m = len(x), len(y)
    value = (2.0 * xx + n) / n**2 + (2.0 * yy + m) / m**2 - 2.0 * xy / (n * m)
    return value if np.isnan(value) else max(0.0, value)  # rows beyond float32 do not match perfectly


def symmetric_kl(real: np.ndarray, generated: np.ndarray) -> float:
    """The mean over columns of (KL(p|q) + KL(q|p)) / 2, p and q the histograms of the column on common bins.

    Values outside the bins are left out.
    """
    ends = np.quantile(np.concatenate([real, generated]), KL_QUANTILES, axis=0)  # (2, p)
    divergence = []
    for x, y, low, high in zip(real.T, generated.T, *ends, strict=True):
        # A column that is constant between the quantiles gets bins around its value and falls into one of them.
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
    # Between equal values F - G is in the middle of its jump.
    return np.sum(gap * width, axis=0), np.max(np.where(width > 0.0, gap, 0.0), axis=0)


def sliced_distance(real: np.ndarray, generated: np.ndarray, *, seed: int) -> float:
    """The mean W1 over 64 random directions, of rows standardised by the pooled moments."""
    pooled = np.concatenate([real, generated])
    scale = pooled.std(axis=0)
    scale[scale == 0.0] = 1.0
    directions = generator(seed, "diagnostics", "directions").standard_normal((real.shape[1], N_DIRECTIONS))
    # W1 does not depend on a common shift, so the mean is not subtracted.
    directions /= np.linalg.norm(directions, axis=0) * scale[:, None]
    wasserstein, _ = column_distances(real @ directions, generated @ directions)
    return float(wasserstein.mean())


def correlation_error(real: np.ndarray, generated: np.ndarray) -> float:
    """The Frobenius norm of the difference of the correlation matrices, over sqrt(p)."""

    def correlation(x: np.ndarray) -> np.ndarray:
        """(n, p) -> (p, p); 0 for a constant column, also with itself."""
        centred = x - x.mean(axis=0)
        norm = np.linalg.norm(centred, axis=0)
        centred /= np.where(norm > 0.0, norm, 1.0)
        return centred.T @ centred

    return float(np.linalg.norm(correlation(real) - correlation(generated)) / np.sqrt(real.shape[1]))


def mixing(real: np.ndarray, generated: np.ndarray) -> float:
    """The mean local inverse Simpson's index of the source label, minus 1: from 0 (apart) to 1 (equal halves).

    Around each row of the union, 1 / (s^2 + (1 - s)^2), where s is the share of real rows among its 30 nearest others,
    all weighted equally (Korsunsky et al. 2019 weight them by distance). With n and m unequal, two samples of one
    distribution stay below 1, in all checks alike, so that ranks do not change.
    """
    from sklearn.neighbors import NearestNeighbors

    pooled = np.concatenate([real, generated])
    n_neighbours = min(LISI_NEIGHBOURS, len(pooled) - 1)
    neighbours = NearestNeighbors(n_neighbors=n_neighbours).fit(pooled).kneighbors(return_distance=False)
    share = np.mean(neighbours < len(real), axis=1)
    return float(np.mean(1.0 / (share**2 + (1.0 - share) ** 2)) - 1.0)


def sd_share(real: np.ndarray, generated: np.ndarray) -> float:
    """The share of columns whose standard deviation, generated over real, lies in [0.75, 1.25]."""
    real_sd, generated_sd = real.std(axis=0), generated.std(axis=0)
    low, high = SD_RATIO
    # Multiplied out, so that only a constant column reproduces a constant one.
    return float(np.mean((generated_sd >= low * real_sd) & (generated_sd <= high * real_sd)))
