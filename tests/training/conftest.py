"""Steps without a compiler, and a prepared run with cells."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bayesnde_cli.cli import main


@pytest.fixture
def eager() -> Iterator[None]:
    """Compiled functions run eagerly: for a few steps that is faster than compiling."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="module", params=["marginal", "standard"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared run of small whole numbers, real numbers, words, and whole numbers that hardly recur."""
    folder, rng = tmp_path_factory.mktemp("cells"), np.random.default_rng(0)
    rows = [f"{rng.poisson(2.0)},{rng.normal()},{'uvw'[rng.integers(3)]},{rng.integers(100_000)}" for _ in range(1500)]
    (folder / "d.csv").write_text("\n".join(["counts,sizes,words,money", *rows]) + "\n")
    options = ("--scale", request.param, "--type", "money=lattice", "-q")
    assert main.run(["prepare", str(folder / "d.csv"), *options, "--run", str(folder / "run")]) == 0
    return folder / "run"
