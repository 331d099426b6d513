"""Memory is bounded by the block and not by the table."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fake_engine

# Megabytes. Held as arrays, 230,000 rows with their figures take 40 and more, as Python objects several hundred.
MOST_GROWTH = 40.0


def _new_rows(path: Path, n_rows: int) -> Path:
    rng = np.random.default_rng(n_rows)
    columns = {"a": rng.normal(size=n_rows), "b": rng.gamma(2.0, size=n_rows), "n": rng.integers(0, 9, n_rows)}
    labels = {"k": np.array(["u", "v"])[rng.integers(0, 2, n_rows)], "name": np.arange(n_rows).astype(str)}
    pq.write_table(pa.table(columns | labels), path, row_group_size=50_000)
    return path


def _start(run: Path, data: Path, block_rows: int) -> subprocess.Popen[str]:
    """A process that reads, scores and combines all rows of a file."""
    options = ["--block-rows", str(block_rows), "--draws", "4", "--chains", "1", "-q"]
    command = [sys.executable, fake_engine.__file__, '{"tells_memory": true}', "density", str(data), "--run", str(run)]
    environ = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # the others keep more of what is free
    return subprocess.Popen([*command, *options], env=environ, stderr=subprocess.PIPE, text=True)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's peak")
@pytest.mark.slow
def test_many_times_the_rows_take_no_more_memory_but_many_times_the_block_does(fitted: Path, tmp_path: Path) -> None:
    few, many = _new_rows(tmp_path / "few.parquet", 70_000), _new_rows(tmp_path / "many.parquet", 300_000)
    runs = [Path(shutil.copytree(fitted, tmp_path / f"run-{index}")) for index in range(3)]
    tasks = zip(runs, (few, many, many), (10_000, 10_000, 300_000), strict=True)
    processes = [_start(*task) for task in tasks]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    of_few, of_many, of_one_block = (float(text.split()[-1]) for text in errors)
    assert of_many - of_few < MOST_GROWTH < of_one_block - of_few, (of_few, of_many, of_one_block)
