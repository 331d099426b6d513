"""A small convolutional model of 8 x 8 digits tells them apart, from the file to the classes."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.stages.weights import read_networks

_QUICK_LOOKS = ("--checks", "1", "--validation-rows", "64", "--validation-draws", "8", "--generated-rows", "50")
_TRAINING = ("--batch-rows", "64", *_QUICK_LOOKS)


def test_digits_are_told_apart(bayesnde: Callable, tmp_path: Path) -> None:
    digits = load_digits()
    np.savez(tmp_path / "digits.npz", images=(15 * digits.images).astype(np.uint8), label=digits.target)
    run, found = tmp_path / "run", tmp_path / "classes.csv"
    for line in (
        ("prepare", tmp_path / "digits.npz", "--condition", "label", "--test-rows", "96"),
        ("warmstart", "--width", "8", "--steps", "500", *_TRAINING),
        ("refine", "--steps", "20", "--draws", "2", *_TRAINING),
    ):
        outcome = bayesnde(*line, "--run", run)
        assert outcome.code == 0, outcome.err
    decoder = read_networks(RunLayout(run), "refine").decoder
    assert (decoder.levels, decoder.class_maps) == (256, True)  # pixels have cells, classes their maps
    outcome = bayesnde("classify", "--effort", "quick", "--out", found, "--json", "--run", run)
    assert outcome.code == 0, outcome.err
    summary = json.loads(outcome.out)
    assert summary["accuracy"] > 0.9
    assert 0 < summary["n_gradients"] < 2000  # of a row, under all classes
    with found.open(newline="") as file:
        rows = list(csv.DictReader(file))
    is_right = np.array([row["predicted"] == row["label"] for row in rows])
    is_reliable = np.array([row["reliable"] == "True" for row in rows])
    assert np.mean(is_right) == summary["accuracy"]
    assert is_reliable.sum() > 48
    assert is_right[is_reliable].mean() > is_right[~is_reliable].mean()  # what is doubted is more often wrong
    p = np.array([[float(row[f"p_{label}"]) for label in range(10)] for row in rows])
    assert np.allclose(p.sum(axis=1), 1.0)
