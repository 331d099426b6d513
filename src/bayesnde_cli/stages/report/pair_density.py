"""The density of two columns, all others integrated out, by averaging over latents from the prior.

Given z the columns are independent and normal, so a cell [a, b] x [c, d] of the model's space has the probability

    E_z[ (Phi((b - m_1) / s_1) - Phi((a - m_1) / s_1)) (Phi((d - m_2) / s_2) - Phi((c - m_2) / s_2)) ]

with m(z) and s(z) of the decoder. The maps of columns are increasing: a cell of the file is a cell of the model's
space, and neither a Jacobian nor a grid fine enough for the narrowest normal is needed.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
from scipy.special import ndtr


def pair_shares(
    conditionals: Iterable[tuple[np.ndarray, np.ndarray]], places: Sequence[np.ndarray]
) -> dict[tuple[int, int], np.ndarray]:
    """The probability of every cell of each pair of columns, (cells of the first, cells of the second).

    `conditionals` are pieces of means and standard deviations, (latents, columns) each; `places` the edges of the
    cells of each column, in the model's space.
    """
    pairs = list(combinations(range(len(places)), 2))
    sums = {(i, j): np.zeros((len(places[i]) - 1, len(places[j]) - 1)) for i, j in pairs}
    n_latents = 0
    for mean, sd in conditionals:
        n_latents += len(mean)
        inside = [
            np.diff(ndtr((edges - mean[:, [index]]) / sd[:, [index]]), axis=1)  # (latents, cells)
            for index, edges in enumerate(places)
        ]
        for i, j in pairs:
            sums[i, j] += inside[i].T @ inside[j]
    return {pair: total / max(n_latents, 1) for pair, total in sums.items()}
