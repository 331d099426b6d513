"""The stream of simulated rows: addresses, chunks, and the options of `make_simulator`."""

from typing import Any

import numpy as np
import pytest

from bayesnde_cli.errors import BadUsage
from bayesnde_cli.rng import generator
from bayesnde_cli.tables import simulator_catalogue
from bayesnde_cli.tables.simulator_catalogue import SIMULATORS, Simulator, make_simulator, simulate_rows


def table(simulator: Simulator, n_rows: int, seed: int = 0, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    chunks = list(simulate_rows(simulator, n_rows, seed, **options))
    return np.concatenate([x for x, _ in chunks]), np.concatenate([log_density for _, log_density in chunks])


@pytest.mark.parametrize("name", SIMULATORS)
def test_a_short_simulation_is_the_beginning_of_a_long_one_and_another_seed_gives_other_rows(name: str) -> None:
    simulator = make_simulator(name)
    long_x, long_log_density = table(simulator, 200, chunk_rows=60)
    for n_rows in (1, 59, 60, 61, 150):
        x, log_density = table(simulator, n_rows, chunk_rows=60)
        assert np.array_equal(x, long_x[:n_rows])
        assert np.array_equal(log_density, long_log_density[:n_rows])
    assert not np.isin(long_x, table(make_simulator(name), 200, seed=4, chunk_rows=60)[0]).any()


def test_a_chunk_is_drawn_in_full_at_its_own_address_and_a_wide_table_gets_smaller_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulator_catalogue, "MAX_CHUNK_VALUES", 300)
    simulator = make_simulator("gmm", dim=3)
    chunks = list(simulate_rows(simulator, 250, 7))
    assert [len(x) for x, _ in chunks] == [100, 100, 50]
    for chunk_index, (x, log_density) in enumerate(chunks):
        expected = simulator.sample(100, generator(7, "simulate", chunk_index))
        assert np.array_equal(x, expected[: len(x)])
        np.testing.assert_allclose(log_density, simulator.log_density(x), rtol=1e-12)
    assert not np.isin(chunks[0][0], chunks[1][0]).any()


def test_the_parameters_depend_on_the_dimensions_alone() -> None:
    first, again, other = (make_simulator("linear-gaussian", dim=4, latent_dim=d) for d in (3, 3, 2))
    x = np.ones((2, 4))
    assert np.array_equal(first.log_density(x), again.log_density(x))
    assert not np.isin(first.log_density(x), other.log_density(x)).any()


@pytest.mark.parametrize(
    ("name", "options", "n_columns"),
    [
        ("gmm", {}, 2),
        ("gmm", {"dim": 1, "rotate": True}, 1),
        ("gmm", {"dim": 12}, 12),
        ("linear-gaussian", {}, 5),
        ("linear-gaussian", {"dim": 1}, 1),
        ("linear-gaussian", {"dim": 6, "latent_dim": 6}, 6),
        ("rings", {}, 2),
    ],
)
def test_columns_are_named_x1_to_xp(name: str, options: dict[str, Any], n_columns: int) -> None:
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
            "moons",
            {"dim": 2},
            "error: the simulator 'moons' has no option --dim\n"
            "  --dim belongs to: gmm, linear-gaussian\n"
            "hint: leave --dim out",
        ),
        (
            "gmm",
            {"dim": 1001},
            "error: --dim is out of range\n  found 1001\nhint: choose a whole number from 1 to 1000",
        ),
        (
            "linear-gaussian",
            {"latent_dim": 6},
            "error: --latent-dim is out of range\n  found 6\n"
            "hint: choose a whole number from 1 to 5, the number of columns",
        ),
    ],
)
def test_a_wrong_request_is_bad_usage_with_the_way_out(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadUsage) as caught:
        make_simulator(name, **options)
    assert str(caught.value) == message


def test_fewer_than_one_row_is_refused_before_the_first_chunk() -> None:
    with pytest.raises(BadUsage) as caught:
        simulate_rows(make_simulator("rings"), 0, 0)
    assert str(caught.value) == "error: --rows is out of range\n  found 0\nhint: choose 1 or more"
