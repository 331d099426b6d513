"""`prepare` killed, stopped, run eight times at once, and run on another machine: the same bytes or nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

COMMAND = [sys.executable, "-m", "bayesnde_cli", "prepare"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Large enough to be interrupted in the middle: columns of every kind, 30,000 rows."""
    rng = np.random.default_rng(0)
    path = tmp_path / "data.csv"
    with path.open("w") as file:
        file.write("a,b,c,k\n")
        for a, b, c in zip(rng.normal(size=30_000), rng.gamma(2.0, size=30_000), rng.poisson(5, 30_000), strict=True):
            file.write(f"{a!r},{b!r},{c},{'xyz'[c % 3]}\n".replace("np.float64(", "").replace(")", ""))
    return path


def _bytes(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "prepare").iterdir() if path.name != "manifest.json"}


def _prepare(table: Path, run: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, str(table), "--run", str(run)]
    return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True)


def test_a_killed_run_is_no_result_and_the_next_one_gives_the_same_bytes(table: Path, tmp_path: Path) -> None:
    assert _prepare(table, tmp_path / "calm").returncode == 0
    stormy = tmp_path / "stormy"
    for delay in (0.5, 0.8, 1.1):
        process = subprocess.Popen([*COMMAND, str(table), "--run", str(stormy), "--quiet"])
        time.sleep(delay)
        process.kill()
        process.wait()
        if (stormy / "prepare/manifest.json").exists():  # it was faster than we
            (stormy / "prepare/manifest.json").unlink()
    assert _prepare(table, stormy).returncode == 0
    assert _bytes(stormy) == _bytes(tmp_path / "calm")  # and no leftover: the names agree, too


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_stops_it_with_75_and_leaves_nothing(number: signal.Signals, table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [*COMMAND, str(table), "--run", str(run)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "read as: CSV, separated by ',', header, utf-8\n"  # now it is at work
    process.send_signal(number)
    err = process.communicate()[1]
    assert process.returncode == 75
    assert err.endswith(
        f"error: stopped by {number.name}\n  nothing half-written was left behind\n"
        "hint: run the same command again to go on\n"
    )
    assert not run.exists()


def test_eight_at_once_give_one_result(table: Path, tmp_path: Path) -> None:
    assert _prepare(table, tmp_path / "alone").returncode == 0
    run = tmp_path / "crowd"
    command = [*COMMAND, str(table), "--run", str(run), "--quiet"]
    crowd = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    ends = [(process.communicate(), process.returncode) for process in crowd]
    codes = [code for _, code in ends]
    assert set(codes) <= {0, 3}
    assert 0 in codes
    for (_, err), code in ends:
        assert err == "" if code == 0 else err.startswith("error: prepare is being made by another process")
    assert _bytes(run) == _bytes(tmp_path / "alone")


def test_another_machine_gives_the_same_bytes(table: Path, tmp_path: Path) -> None:
    """A processor without AVX2, FMA and AVX-512, for NumPy, the C library and the linear algebra."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    dispatched = [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]
    if not dispatched:
        pytest.skip("this processor has no features to take away")
    older = {
        "NPY_DISABLE_CPU_FEATURES": " ".join(dispatched),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F,-FMA4",
        "OPENBLAS_CORETYPE": "Nehalem",
        "OMP_NUM_THREADS": "1",
    }
    # The older machine is another one: the same exponential differs there in the last bit.
    probe = "import numpy as np; print(np.exp(np.linspace(-5, 5, 10001)).tobytes().hex())"
    results = [
        subprocess.run([sys.executable, "-c", probe], env=os.environ | env, capture_output=True, text=True).stdout
        for env in ({}, older)
    ]
    if results[0] == results[1]:
        pytest.skip("taking features away changes nothing on this processor")
    assert _prepare(table, tmp_path / "here").returncode == 0
    there = _prepare(table, tmp_path / "there", **older)
    assert (there.returncode, there.stderr.count("warning")) == (0, 0)
    assert _bytes(tmp_path / "here") == _bytes(tmp_path / "there")
