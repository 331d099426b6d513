"""`bayesnde simulate`: every name, every format, the same rows for the same seed."""

import csv
import io
import json
import os
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.tables import simulator_catalogue
from bayesnde_cli.tables.simulator_catalogue import SIMULATORS, make_simulator


def _numbers(text: str) -> np.ndarray:
    return np.array([[float(cell) for cell in row] for row in list(csv.reader(io.StringIO(text)))[1:]])


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a thousand values: every command draws a chunk in full."""
    monkeypatch.setattr(simulator_catalogue, "MAX_CHUNK_VALUES", 1000)


@pytest.mark.parametrize("name", SIMULATORS)
def test_the_truth_belongs_to_the_written_rows(name: str, bayesnde: Callable) -> None:
    outcome = bayesnde("simulate", name, "--rows", "50", "--seed", "3")
    assert outcome.code == 0
    rows = _numbers(outcome.out)
    assert rows.shape[0] == 50
    assert np.allclose(rows[:, -1], make_simulator(name).log_density(rows[:, :-1]), atol=1e-9)


def test_formats_hold_the_same_rows(bayesnde: Callable, tmp_path: Path) -> None:
    for name in ("g.csv", "g.parquet", "g.jsonl"):
        outcome = bayesnde("simulate", "gmm", "--dim", "3", "--rotate", "--rows", "20", "--out", tmp_path / name)
        assert (outcome.code, outcome.out) == (0, "")
    rows = _numbers((tmp_path / "g.csv").read_text())
    table = pq.read_table(tmp_path / "g.parquet")
    assert np.array_equal(rows, np.stack([table[name].to_numpy() for name in table.column_names], axis=1))
    lines = [json.loads(line) for line in (tmp_path / "g.jsonl").read_text().splitlines()]
    assert np.array_equal(rows, np.array([list(line.values()) for line in lines]))
    assert list(lines[0]) == ["x1", "x2", "x3", "true_log_density"]


def test_a_seed_names_the_rows_and_a_shorter_simulation_is_their_beginning(bayesnde: Callable) -> None:
    long = bayesnde("simulate", "rings", "--rows", "100", "--seed", "1").out
    assert bayesnde("simulate", "rings", "--rows", "100", "--seed", "1").out == long
    assert long.startswith(bayesnde("simulate", "rings", "--rows", "10", "--seed", "1").out)
    assert bayesnde("simulate", "rings", "--rows", "100", "--seed", "2").out != long


def test_places_that_cannot_be_written_to(bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    Path("file").write_text("")
    Path("folder").mkdir()
    for options in ([], ["--format", "parquet"]):
        outcome = bayesnde("simulate", "gmm", "--out", "folder", *options)
        assert (outcome.code, outcome.err) == (
            2,
            "error: --out folder is a directory\n  a directory, not a file\nhint: name a file inside it\n",
        )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for place in ("file/g.csv", "socket"):
            outcome = bayesnde("simulate", "gmm", "--out", place)
            assert outcome.code == 2
            assert re.match(rf"error: cannot write (\S*/)?{place}\n", outcome.err)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "socket"]


def test_a_link_stays_a_link_and_a_pipe_is_written_to(bayesnde: Callable, tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target.csv", tmp_path / "link.csv", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    assert bayesnde("simulate", "gmm", "--rows", "5", "--out", link).code == 0
    assert link.is_symlink()
    assert target.read_text().startswith("x1,x2,true_log_density\n")
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    assert bayesnde("simulate", "gmm", "--rows", "5", "--out", pipe).code == 0
    reader.join(timeout=10)
    assert received == [target.read_text()]
    assert pipe.is_fifo()


def test_an_ending_without_a_format_is_refused(bayesnde: Callable, tmp_path: Path) -> None:
    outcome = bayesnde("simulate", "gmm", "--out", tmp_path / "g.xlsx")
    assert outcome.code == 2
    assert outcome.err == (
        f"error: --out {tmp_path}/g.xlsx: no format belongs to the ending '.xlsx'\n"
        "  endings: .parquet, .pq, .jsonl, .ndjson, .csv, .txt, .dat\n"
        "hint: use another ending, or add --format csv\n"
    )
    assert bayesnde("simulate", "gmm", "--out", tmp_path / "g.xlsx", "--format", "csv").code == 0
