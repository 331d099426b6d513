"""The same rows give the same maps on a processor with other instructions.

Another machine is played by a child process in which NumPy and the C library leave out their vector code. Negative
control: in such a child `numpy.exp` does give other bits, where the processor has that code to leave out.
"""

import json
import os
import subprocess
import sys

import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

PROGRAM = """
import json, sys
import numpy as np
from bayesnde_cli.data.scaling import fit_categorical, fit_lattice, fit_mixture, fit_standard
from bayesnde_cli.data.scaling.exponential import portable_exp
from bayesnde_cli.rng import uniform_at

def uniform(seed, n):  # integer arithmetic: the rows themselves are the same everywhere
    return uniform_at(seed, np.arange(n))

bell = sum(uniform(seed, 9_000) for seed in range(12)) - 6.0
skewed = 1.0 / (0.01 + uniform(20, 9_000))
edges = uniform(21, 9_000)
modes = np.floor(3.0 * uniform(22, 9_000)) + 0.1 * bell
counts = np.floor(skewed)
fraction = uniform(23, 9_000)
maps, scores = {}, {}
for name, y in {"bell": bell, "skewed": skewed, "edges": edges, "modes": modes, "few": bell[:60]}.items():
    n = len(y) * 9 // 10
    maps[name] = fit_mixture(y[:n], y[n:])
    scores[name] = maps[name].forward(y)
maps["standard"] = fit_standard(skewed)
scores["standard"] = maps["standard"].forward(skewed)
for name, values in {"counts": counts, "short counts": counts[:200], "wide counts": np.floor(1e4 * edges)}.items():
    n = len(values) * 9 // 10
    maps[name] = fit_lattice(values[:n], values[n:])
    scores[name] = maps[name].forward(values, fraction[:len(values)])
codes = np.floor(5.0 * edges**2)
maps["codes"] = fit_categorical(codes[:8_000], codes[8_000:], n_categories=5)
scores["codes"] = maps["codes"].forward(codes, fraction)
json.dump({
    "maps": {name: column_map.to_json() for name, column_map in maps.items()},
    "scores": {name: u.astype(np.float32).tobytes().hex() for name, (u, _) in scores.items()},
    "exp": np.exp(-bell**2).tobytes().hex(),
    "portable exp": portable_exp(-bell**2).tobytes().hex(),
}, sys.stdout)
"""


def run(**environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here():
    return run()


@pytest.fixture(scope="module")
def plain_processor():
    optional = [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]
    if not optional:
        pytest.skip("this processor has no optional instructions to leave out")
    return run(
        NPY_DISABLE_CPU_FEATURES=" ".join(optional),
        GLIBC_TUNABLES="glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F",
    )


def test_the_fitted_maps_are_equal_to_the_last_digit(here, plain_processor):
    assert plain_processor["maps"] == here["maps"]


def test_the_scores_are_equal_in_single_precision(here, plain_processor):
    assert plain_processor["scores"] == here["scores"]


def test_the_exponential_of_the_fits_is_equal_to_the_last_bit(here, plain_processor):
    assert plain_processor["portable exp"] == here["portable exp"]


def test_the_other_processor_does_compute_otherwise(here, plain_processor):
    if "X86_V4" not in __cpu_dispatch__ or not __cpu_features__.get("X86_V4"):
        pytest.skip("numpy.exp has vector code of its own only with AVX-512")
    assert plain_processor["exp"] != here["exp"]
