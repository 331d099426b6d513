"""The stream of rows: addresses, chunks, and the options of `make_simulator`."""

import subprocess
import sys

import numpy as np
import pytest

from bayesnde_cli.data.simulators import SIMULATORS, make_simulator, simulate_rows
from bayesnde_cli.data.simulators.streaming import MAX_CHUNK_VALUES
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.rng import generator


def table(simulator, n_rows, seed=0, **options):
    chunks = list(simulate_rows(simulator, n_rows, seed, **options))
    return np.concatenate([x for x, _ in chunks]), np.concatenate([log_density for _, log_density in chunks])


@pytest.mark.parametrize("name", SIMULATORS)
def test_the_first_rows_of_a_long_simulation_are_the_short_simulation(name):
    simulator = make_simulator(name)
    long_x, long_log_density = table(simulator, 1000, chunk_rows=300)
    for n_rows in (1, 299, 300, 301, 777):
        x, log_density = table(simulator, n_rows, chunk_rows=300)
        assert np.array_equal(x, long_x[:n_rows])
        assert np.array_equal(log_density, long_log_density[:n_rows])


@pytest.mark.parametrize("name", SIMULATORS)
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(name):
    first, _ = table(make_simulator(name), 50, seed=3, chunk_rows=64)
    again, _ = table(make_simulator(name), 50, seed=3, chunk_rows=64)
    other, _ = table(make_simulator(name), 50, seed=4, chunk_rows=64)
    assert np.array_equal(first, again)
    assert not np.isin(first, other).any()


def test_a_chunk_is_drawn_in_full_at_its_own_address():
    simulator = make_simulator("gmm", dim=3)
    chunks = list(simulate_rows(simulator, 250, 7, chunk_rows=100))
    assert [len(x) for x, _ in chunks] == [100, 100, 50]
    for chunk_index, (x, log_density) in enumerate(chunks):
        expected = simulator.sample(100, generator(7, "simulate", chunk_index))
        assert np.array_equal(x, expected[: len(x)])
        np.testing.assert_allclose(log_density, simulator.log_density(x), rtol=1e-12)
    assert not np.isin(chunks[0][0], chunks[1][0]).any()


def test_the_default_chunk_is_65536_rows():
    sizes = [len(x) for x, _ in simulate_rows(make_simulator("checkerboard"), 70_000, 0)]
    assert sizes == [65_536, 70_000 - 65_536]


def test_a_wide_table_gets_smaller_chunks():
    x, log_density = next(iter(simulate_rows(make_simulator("gmm", dim=1000), 10_000, 0)))
    assert x.shape == (MAX_CHUNK_VALUES // 1000, 1000)
    assert log_density.shape == (MAX_CHUNK_VALUES // 1000,)


def test_the_parameters_depend_on_the_dimensions_alone():
    first, again = (make_simulator("linear-gaussian", dim=4, latent_dim=3) for _ in range(2))
    assert np.array_equal(first.weights, again.weights)
    assert np.array_equal(first.offset, again.offset)
    assert np.array_equal(first.noise_sd, again.noise_sd)
    assert first.weights.shape == (4, 3)
    other = make_simulator("linear-gaussian", dim=4, latent_dim=2)
    assert not np.isin(first.noise_sd, other.noise_sd).any()


@pytest.mark.parametrize(
    ("name", "options", "n_columns"),
    [
        ("involute", {}, 2),
        ("gmm", {}, 2),
        ("gmm", {"dim": 1, "rotate": True}, 1),
        ("gmm", {"dim": 12}, 12),
        ("linear-gaussian", {}, 5),
        ("linear-gaussian", {"dim": 1}, 1),
        ("linear-gaussian", {"dim": 6, "latent_dim": 6}, 6),
        ("moons", {}, 2),
        ("checkerboard", {}, 2),
        ("rings", {}, 2),
    ],
)
def test_columns_are_named_x1_to_xp(name, options, n_columns):
    simulator = make_simulator(name, **options)
    assert simulator.names == tuple(f"x{index}" for index in range(1, n_columns + 1))
    assert simulator.sample(3, generator(0, "test")).shape == (3, n_columns)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "involut",
            {},
            "error: there is no simulator 'involut'\n"
            "  simulators: involute, gmm, linear-gaussian, moons, checkerboard, rings\n"
            "hint: did you mean 'involute'?",
        ),
        (
            "xyz",
            {},
            "error: there is no simulator 'xyz'\n"
            "  simulators: involute, gmm, linear-gaussian, moons, checkerboard, rings\n"
            "hint: choose one of the names above",
        ),
        (
            "moons",
            {"dim": 2},
            "error: the simulator 'moons' has no option --dim\n"
            "  --dim belongs to: gmm, linear-gaussian\n"
            "hint: leave --dim out",
        ),
        (
            "gmm",
            {"latent_dim": 2},
            "error: the simulator 'gmm' has no option --latent-dim\n"
            "  --latent-dim belongs to: linear-gaussian\n"
            "hint: leave --latent-dim out",
        ),
        (
            "linear-gaussian",
            {"rotate": True},
            "error: the simulator 'linear-gaussian' has no option --rotate\n"
            "  --rotate belongs to: gmm\n"
            "hint: leave --rotate out",
        ),
        (
            "gmm",
            {"dim": 0},
            "error: --dim is out of range\n  found 0\nhint: choose a whole number from 1 to 1000",
        ),
        (
            "gmm",
            {"dim": 1001},
            "error: --dim is out of range\n  found 1001\nhint: choose a whole number from 1 to 1000",
        ),
        (
            "linear-gaussian",
            {"dim": 3, "latent_dim": 4},
            "error: --latent-dim is out of range\n"
            "  found 4\n"
            "hint: choose a whole number from 1 to 3, the number of columns",
        ),
    ],
)
def test_a_wrong_request_is_bad_usage_with_the_way_out(name, options, message):
    with pytest.raises(BadUsage) as caught:
        make_simulator(name, **options)
    assert str(caught.value) == message


def test_fewer_than_one_row_is_refused_before_the_first_chunk():
    with pytest.raises(BadUsage) as caught:
        simulate_rows(make_simulator("rings"), 0, 0)
    assert str(caught.value) == "error: --rows is out of range\n  found 0\nhint: choose 1 or more"
    with pytest.raises(BadUsage, match="rows per chunk"):
        simulate_rows(make_simulator("rings"), 5, 0, chunk_rows=0)


def test_the_list_of_simulators_needs_no_numpy():
    code = (
        "import sys; from bayesnde_cli.data.simulators import SIMULATORS; "
        "print(*(str(family) for family in SIMULATORS.values())); "
        "assert not {'numpy', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
