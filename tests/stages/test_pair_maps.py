"""What a report shows of the model: densities of pairs of columns, on cells whose probability is known."""

import numpy as np
import pytest
from linear_gaussian_oracle import random_oracle
from scipy.stats import multivariate_normal, norm

from bayesnde_cli.inference.two_columns import PairSums, cell_probability
from bayesnde_cli.scaling.column_map import Affine, Noise, fit_standard
from bayesnde_cli.scaling.discrete import fit_categorical, fit_lattice
from bayesnde_cli.stages.measures import scale_edges
from bayesnde_cli.tables.columns import Kind
from bayesnde_cli.tables.schema import Feature


def test_pair_densities_of_a_linear_gaussian_model_are_bivariate_normal() -> None:
    oracle = random_oracle(3, 2, seed=1)
    z = np.random.default_rng(0).standard_normal((40_000, 2))
    mean = z @ oracle.weights.T + oracle.offset
    sd = np.broadcast_to(np.sqrt(oracle.variance), mean.shape)
    covariance = oracle.weights @ oracle.weights.T + np.diag(oracle.variance)
    scale = np.sqrt(np.diag(covariance))
    places = [oracle.offset[index] + scale[index] * np.linspace(-2, 2, 9) for index in range(3)]
    for i, j in [(0, 1), (0, 2), (1, 2)]:
        sums = PairSums(8, 8)
        for piece in (slice(0, 20_000), slice(20_000, None)):
            inside = [cell_probability(places[k][:-1], places[k][1:], mean[piece, k], sd[piece, k]) for k in (i, j)]
            sums.add(*inside)
        shares = sums.density
        own = multivariate_normal(oracle.offset[[i, j]], covariance[np.ix_([i, j], [i, j])])
        corners = own.cdf(np.stack(np.meshgrid(places[i], places[j], indexing="ij"), axis=-1))
        truth = np.diff(np.diff(corners, axis=0), axis=1)
        # A share of 0.1 from 40,000 latents has a standard error below 0.0015.
        assert np.abs(shares - truth).max() < 0.006
        wrong = np.diff(np.diff(corners.T, axis=0), axis=1)  # the negative control: axes exchanged
        assert np.abs(shares - wrong).max() > 0.006 or np.allclose(truth, truth.T, atol=0.006)


def test_edges_of_whole_numbers_are_those_of_their_noise() -> None:
    values = np.repeat(np.arange(6.0), 20)
    edges = np.array([-0.5, 1.5, 3.5, 5.5])
    lattice = Feature("n", Kind.LATTICE, (), fit_lattice(values, values, noise=Noise()))
    scaled = scale_edges(lattice, edges)
    assert (np.diff(scaled) > 0).all()
    assert lattice.map.inverse(scaled) == pytest.approx(edges, abs=1e-6)
    plain = Feature("n", Kind.LATTICE, (), Affine(0.0, 1.0, Noise()))
    assert scale_edges(plain, edges) == pytest.approx(edges, abs=1e-6)
    continuous = Feature("x", Kind.CONTINUOUS, (), fit_standard(values, None))
    assert continuous.map.inverse(scale_edges(continuous, edges)) == pytest.approx(edges)


@pytest.mark.parametrize("n_categories", [2, 3, 4])
def test_cells_of_categories_have_the_probabilities_of_the_categories(n_categories: int) -> None:
    codes = np.repeat(np.arange(float(n_categories)), 20)
    categorical = fit_categorical(codes, codes, n_categories=n_categories)
    scaled = scale_edges(
        Feature("k", Kind.CATEGORICAL, tuple("abcd"[:n_categories]), categorical), np.arange(n_categories + 1) - 0.5
    )
    assert np.diff(norm.cdf(scaled)) == pytest.approx(1 / n_categories, abs=1e-6)
    assert scaled[[0, -1]].tolist() == [-np.inf, np.inf]  # as far as the model reaches
