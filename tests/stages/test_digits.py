"""A small convolutional model of 8 x 8 digits tells four of them apart, from the file to the classes.

It runs without XLA, which takes minutes to compile convolutions. Compiled rounds and screens of images are tested in
`tests/training/test_objectives.py` and `tests/inference/test_class_screen.py`.
"""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.stages.loading import read_networks

_TRAINING = ["--batch-rows=64", "--checks=1", "--validation-rows=32", "--validation-draws=4", "--generated-rows=50"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_xla")
def test_digits_are_told_apart(bayesnde: Callable, tmp_path: Path) -> None:
    images, target = load_digits(n_class=4, return_X_y=True)
    images = (15 * images).astype(np.uint8).reshape(-1, 8, 8)
    np.savez(tmp_path / "digits.npz", images=images, label=target)
    run, found = tmp_path / "run", tmp_path / "classes.csv"
    for line in (
        ("prepare", tmp_path / "digits.npz", "--condition", "label", "--test-rows", "48"),
        ("warmstart", "--width", "4", "--steps", "200", "--learning-rate", "0.003", *_TRAINING),
        ("refine", "--steps", "4", "--draws", "2", *_TRAINING),
    ):
        outcome = bayesnde(*line, "--run", run)
        assert outcome.code == 0, outcome.err
    decoder = read_networks(RunLayout(run), "refine").decoder
    assert (decoder.levels, decoder.class_maps) == (256, True)  # pixels have cells, classes their maps
    outcome = bayesnde("classify", "--effort", "quick", "--out", found, "--json", "--run", run)
    assert outcome.code == 0, outcome.err
    summary = json.loads(outcome.out)
    assert summary["accuracy"] > 0.85  # a quarter by chance
    assert 0 < summary["n_gradients"] < 2000  # of a row, under all classes
    with found.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert np.mean([row["predicted"] == row["label"] for row in rows]) == summary["accuracy"]
    assert sum(row["reliable"] == "True" for row in rows) > 24
    p = np.array([[float(row[f"p_{label}"]) for label in range(4)] for row in rows])
    assert np.allclose(p.sum(axis=1), 1.0)
