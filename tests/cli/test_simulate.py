"""`bayesnde simulate`: every name, every format, the same rows for the same seed."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.data.simulators import SIMULATORS, make_simulator


def _numbers(text: str) -> np.ndarray:
    return np.array([[float(cell) for cell in row] for row in list(csv.reader(io.StringIO(text)))[1:]])


@pytest.mark.parametrize("name", SIMULATORS)
def test_the_truth_belongs_to_the_written_rows(name: str, bayesnde: Callable) -> None:
    outcome = bayesnde("simulate", name, "--rows", "50", "--seed", "3")
    assert outcome.code == 0
    rows = _numbers(outcome.out)
    assert rows.shape[0] == 50
    exact = make_simulator(name).log_density(rows[:, :-1])
    assert np.allclose(rows[:, -1], exact, atol=1e-9)


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


def test_the_example_is_what_the_command_writes(bayesnde: Callable, examples: Path) -> None:
    written = _numbers(bayesnde("simulate", "involute", "--rows", "5000", "--seed", "0").out)
    assert np.allclose(written, _numbers((examples / "involute.csv").read_text()), atol=1e-12)


def test_a_failed_write_leaves_no_file(bayesnde: Callable, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = bayesnde("simulate", "gmm", "--out", tmp_path / "file" / "g.csv")
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: cannot write {tmp_path}/file/g.csv\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_directory_is_no_place_for_a_table(bayesnde: Callable, tmp_path: Path) -> None:
    for options in ([], ["--format", "parquet"]):
        outcome = bayesnde("simulate", "gmm", "--out", tmp_path, *options)
        assert (outcome.code, outcome.err) == (
            2,
            f"error: --out {tmp_path} is a directory\n  a directory, not a file\nhint: name a file inside it\n",
        )
    assert list(tmp_path.iterdir()) == []


def test_a_socket_cannot_be_written_to(bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("place")
        outcome = bayesnde("simulate", "gmm", "--out", "place")
    assert outcome.code == 2
    assert outcome.err.startswith("error: cannot write place\n")


def test_a_link_stays_a_link_and_a_pipe_is_written_to(bayesnde: Callable, tmp_path: Path) -> None:
    import os
    import threading

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
        "hint: name the file otherwise, or say --format csv\n"
    )
    assert bayesnde("simulate", "gmm", "--out", tmp_path / "g.xlsx", "--format", "csv").code == 0
