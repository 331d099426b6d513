"""`grid`: an average over latents against closed forms, with its error; what a grid of values adds up to."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from scipy.stats import norm

from bayesnde_cli.answers import FittedRun, fitted_run
from bayesnde_cli.answers.grid import (
    BLOCK_LATENTS,
    Grid,
    Question,
    axis_at,
    axis_between,
    grid_axes,
    held_columns,
    run_grid,
)
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.scaling.column_map import Affine, Noise, fit_standard
from bayesnde_cli.scaling.discrete import fit_categorical
from bayesnde_cli.settings.stage_settings import DensitySettings
from bayesnde_cli.stages.loading import Prior
from bayesnde_cli.tables.columns import Kind
from bayesnde_cli.tables.schema import Feature
from linear_model import OF_FITTED, LinearModel, LinearPrior
from scoring_runs import Notes

N_DRAWS = 2 * BLOCK_LATENTS


@pytest.fixture
def known(fitted: Path) -> FittedRun:
    return fitted_run(RunLayout(fitted), DensitySettings())


def _found(known: FittedRun, question: Question, model: LinearModel = OF_FITTED) -> Grid:
    return run_grid(known, cast(Prior, LinearPrior(model, BLOCK_LATENTS)), replace(question, n_draws=N_DRAWS), Notes())


def _a_and_b(known: FittedRun, n_points: int = 12, **more: object) -> Question:
    return Question(*grid_axes(known, ("a", "b"), n_points, None), **more)  # type: ignore[arg-type]


def _exact(known: FittedRun, class_index: int) -> np.ndarray:
    """log p(a, b | class) on the grid, in the units of the file."""
    first, second = grid_axes(known, ("a", "b"), 12, None)
    assert first.log_slope is not None
    assert second.log_slope is not None
    points = np.stack(np.meshgrid(first.low, second.low, indexing="ij"), axis=-1)
    slopes = first.log_slope[:, None] + second.log_slope[None, :]
    return OF_FITTED.log_density(points, [0, 1], class_index) + slopes


def test_the_density_is_the_closed_form_within_its_error(known: FittedRun) -> None:
    for class_index in (0, 1):
        found = _found(known, _a_and_b(known, chosen_class=class_index))
        is_told = found.mc_se < 0.2  # errors by the delta method
        z = ((found.log_density - _exact(known, class_index)) / found.mc_se)[is_told]
        assert is_told.sum() > 50
        assert np.abs(z).max() < 4.5
        assert 0.6 < z.std() < 1.4  # neighbouring points go together
        wrong = ((found.log_density - _exact(known, 1 - class_index)) / found.mc_se)[is_told]
        assert np.abs(wrong).max() > 20


def test_without_a_class_all_of_them_are_mixed_as_in_training(known: FittedRun) -> None:
    found = _found(known, _a_and_b(known))
    exact = np.log(sum(share * np.exp(_exact(known, index)) for index, share in enumerate(known.class_shares)))
    is_told = found.mc_se < 0.2
    assert np.abs((found.log_density - exact) / found.mc_se)[is_told].max() < 4.5
    assert found.title == "log p(a, b)"


def test_four_times_the_draws_halve_the_error(known: FittedRun) -> None:
    question, prior = _a_and_b(known), cast(Prior, LinearPrior(OF_FITTED, BLOCK_LATENTS))
    few, many = (run_grid(known, prior, replace(question, n_draws=n), Notes()) for n in (4000, 16000))
    is_told = few.mc_se < 0.1
    assert np.median((few.mc_se / many.mc_se)[is_told]) == pytest.approx(2.0, rel=0.1)


def test_a_column_that_is_held_conditions_the_others(known: FittedRun) -> None:
    a, b, n = known.schema.features
    plain = replace(n, kind=Kind.CONTINUOUS, map=Affine(0.0, 1.0))  # the model's space itself
    schema = replace(known.schema, features=(a, b, plain))
    run = FittedRun(known.layout, schema, known.config)
    question = _a_and_b(known, chosen_class=0, held=[axis_at(plain, np.array([1.2]))])
    found = _found(run, question)
    first, second = question.first, question.second
    points = np.stack(np.meshgrid(first.low, second.low, [1.2], indexing="ij"), axis=-1)[:, :, 0]
    assert first.log_slope is not None
    assert second.log_slope is not None
    slopes = first.log_slope[:, None] + second.log_slope[None, :]
    joint = OF_FITTED.log_density(points, [0, 1, 2], 0) - norm.logpdf(
        1.2, OF_FITTED.mean(0)[2], OF_FITTED.covariance[2, 2] ** 0.5
    )
    is_told = found.mc_se < 0.2
    z = ((found.log_density - (joint + slopes)) / found.mc_se)[is_told]
    assert np.abs(z).max() < 4.5
    assert np.abs((found.log_density - _exact(known, 0)) / found.mc_se)[is_told].max() > 10  # it makes a difference
    assert found.title == "log p(a, b | k = u, n = 1.2)"


def test_a_wide_grid_holds_all_of_the_probability(known: FittedRun) -> None:
    wide = grid_axes(known, ("a", "n"), 200, "-12,14,-20,60")
    assert wide[1].log_slope is None  # whole numbers: their probabilities are summed
    assert _found(known, Question(*wide)).share == pytest.approx(1.0, abs=0.01)
    narrow = grid_axes(known, ("a", "n"), 200, "-1,1,0,60")
    assert _found(known, Question(*narrow)).share < 0.8


def test_values_of_whole_numbers_have_the_probability_of_their_cells(known: FittedRun) -> None:
    lattice = known.schema.features[2]
    values = np.arange(-30.0, 80.0)
    mean, sd = np.array([0.3, -1.0]), np.array([0.5, 0.02])
    mass = axis_at(lattice, values).density(mean, sd)
    assert mass.shape == (2, len(values))
    assert np.allclose(mass.sum(axis=1), 1.0, atol=1e-9)
    u = norm.rvs(0.3, 0.5, 20_000, random_state=0)
    counts = np.bincount((lattice.map.to_value(lattice.map.inverse(u)) + 30).astype(int), minlength=len(values))
    error = np.sqrt(mass[0] * (1 - mass[0]) / len(u)) + 1e-9
    assert np.abs((counts / len(u) - mass[0]) / error)[mass[0] > 1e-3].max() < 4


@pytest.mark.parametrize("noise", [Noise(), Noise(0.0, 0.5), Noise(-1.5, 1.5)])
def test_cells_of_affine_maps_meet_halfway_between_the_values(noise: Noise) -> None:
    rng = np.random.default_rng(0)
    feature = Feature(
        "n",
        Kind.LATTICE,
        (),
        fit_standard(noise.add(rng.integers(0, 9, 300).astype(np.float64), np.full(300, 0.5)), noise),
    )
    mass = axis_at(feature, np.arange(-20.0, 30.0)).density(np.array([0.2]), np.array([0.4]))
    assert mass.sum() == pytest.approx(1.0, abs=1e-9)


def test_categories_are_all_of_the_axis() -> None:
    codes = np.random.default_rng(0).integers(0, 3, 300).astype(np.float64)
    for column_map in (fit_categorical(codes, codes[:50], n_categories=3), Affine(0.0, 1.0, Noise())):
        feature = Feature("colour", Kind.CATEGORICAL, ("blue", "green", "red"), column_map)
        axis = axis_between(feature, 0.0, 2.0, 100)
        assert axis.cells.to_pylist() == ["blue", "green", "red"]
        assert axis.density(np.array([0.5, -9.0]), np.array([2.0, 1.0])).sum(axis=1) == pytest.approx([1.0, 1.0])


def test_points_of_the_axes(known: FittedRun) -> None:
    first, second = grid_axes(known, ("a", "n"), 10, "0,9,-0.5,100.5")
    assert first.places.tolist() == list(range(10))
    assert second.places.tolist() == [12.0 * i for i in range(9)]  # even steps of whole numbers, 10 at most
    assert second.cells.to_pylist() == [12 * i for i in range(9)]
    usual, _ = grid_axes(known, ("a", "n"), 10, None)
    values = np.concatenate([batch.column(0).to_numpy() for batch in known.training_rows(["a"])])
    assert np.mean((values > usual.places[0]) & (values < usual.places[-1])) > 0.98


def test_the_table_has_a_row_for_each_point(known: FittedRun) -> None:
    found = _found(known, Question(*grid_axes(known, ("a", "n"), 5, "0,4,1,2")))
    table = found.table()
    assert table.column_names == ["a", "n", "log_density", "mc_se", "reliable"]
    assert table["a"].to_pylist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]
    assert table["n"].to_pylist() == [1, 2] * 5
    assert table["log_density"].to_pylist() == found.log_density.ravel().tolist()
    assert table["reliable"].to_pylist() == (found.mc_se <= 0.05).ravel().tolist()


def test_where_the_model_has_nothing_the_error_is_infinite(known: FittedRun) -> None:
    a, b, n = known.schema.features
    far = replace(a, map=Affine(0.0, 1.0))
    run = FittedRun(known.layout, replace(known.schema, features=(far, b, n)), known.config)
    # At 20 the density itself is there, and the squares of its parts are not.
    question = Question(axis_at(far, np.array([0.0, 20.0, 1e6])), axis_at(b, np.array([1.0])))
    found = _found(run, question)
    assert np.isfinite(found.log_density[:, 0]).tolist() == [True, True, False]
    assert found.log_density[1, 0] < -350
    assert found.mc_se[1:, 0].tolist() == [np.inf, np.inf]
    assert found.reliable[:, 0].tolist() == [True, False, False]
    with pytest.raises(BadUsage, match=r"the model has no density at the values of --at\n  a = 1000000\.0"):
        _found(run, replace(_a_and_b(known), first=axis_at(n, np.array([1.0])), held=[axis_at(far, np.array([1e6]))]))


@pytest.mark.parametrize(
    ("names", "points", "between", "message"),
    [
        (("a", "c"), 10, None, "a grid: there is no feature 'c'\n  features: a, b, n\n"),
        (("a", "a"), 10, None, "a grid needs two columns\n  'a' twice\n"),
        (("a", "k"), 10, None, "a grid: 'k' is the condition, not a feature\n  classes: u, v\n"),
        (("a", "b"), 1, None, "--points must be at least 2 and at most 5,000\n  --points 1\n"),
        (("a", "b"), 10**6, None, "--points must be at least 2 and at most 5,000\n  --points 1000000\n"),
        (("a", "b"), 10, "0,1", "--range cannot be '0,1'\n"),
        (("a", "b"), 10, "1,0,0,1", "--range cannot be '1,0,0,1'\n"),
        (("a", "b"), 10, "0,one,0,1", "--range cannot be '0,one,0,1'\n"),
        (("a", "n"), 10, "0,1,0.2,0.8", "--range: there is no whole number between 0.2 and 0.8\n"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(
    known: FittedRun, names: tuple, points: int, between: str | None, message: str
) -> None:
    with pytest.raises(BadUsage) as refused:
        grid_axes(known, names, points, between)
    assert str(refused.value).startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("n", "--at n names no value\n"),
        ("n=1.5", "--at: column 'n' takes a whole number\n  value: '1.5'\n"),
        ("a=1", "--at: column 'a' is already on the grid or held\n"),
        ("m=1", "--at: there is no feature 'm'\n"),
        ("k=u", "--at: 'k' is the condition, not a feature\n"),
    ],
)
def test_a_value_that_cannot_be_held_is_refused(known: FittedRun, rule: str, message: str) -> None:
    with pytest.raises(BadUsage) as refused:
        held_columns(known, [rule], grid_axes(known, ("a", "b"), 5, None))
    assert str(refused.value).startswith(f"error: {message}")


def test_a_column_with_an_equals_sign_can_be_held(known: FittedRun) -> None:
    features = tuple(
        replace(feature, name={"a": "x", "b": "y", "n": "x=1"}[feature.name]) for feature in known.schema.features
    )
    run = replace(known, schema=replace(known.schema, features=features))
    for rule, name, value in (("x=1=3", "x=1", 3), ("x=1 = 3", "x=1", 3), ("x=3", "x", 3.0), (" y = -1", "y", -1.0)):
        (axis,) = held_columns(run, [rule], ())
        assert (axis.feature.name, axis.cells[0].as_py()) == (name, value)


class _RarelyFarAway:
    """Columns are N(0, 1), and N(10, 1) for latents beyond 5, which are drawn once in three million times."""

    def moments(self, seed: int, y: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        z = np.random.Generator(np.random.Philox(seed)).standard_normal((BLOCK_LATENTS, 1))
        mean = np.broadcast_to(np.where(z > 5.0, 10.0, 0.0), (BLOCK_LATENTS, 3))
        return mean, np.ones_like(mean)


def test_the_error_covers_latents_that_were_never_drawn(known: FittedRun) -> None:
    plain = tuple(replace(feature, kind=Kind.CONTINUOUS, map=Affine(0.0, 1.0)) for feature in known.schema.features)
    run = FittedRun(known.layout, replace(known.schema, features=plain), known.config)
    points = np.array([0.0, 10.0])
    question = Question(axis_at(plain[0], points), axis_at(plain[1], points), n_draws=N_DRAWS)
    found = run_grid(run, cast(Prior, _RarelyFarAway()), question, Notes())
    exact = np.log(norm.pdf(points, 0.0) ** 2 * norm.cdf(5.0) + norm.pdf(points, 10.0) ** 2 * norm.sf(5.0))
    off = np.abs(np.diag(found.log_density) - exact)
    assert off[0] < 1e-5
    assert off[1] > 50  # all latents drawn say the same, and are wrong
    assert found.mc_se[1, 1] > off[1]
    assert np.diag(found.reliable).tolist() == [True, False]
