"""`--scale auto`: the scaling in which validation rows are likelier."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


def _kinds(run: Path) -> set[str]:
    """The kinds of the columns' maps."""
    return {feature["map"]["kind"] for feature in json.loads((run / "prepare/schema.json").read_text())["features"]}


@pytest.mark.parametrize(
    ("simulated", "kind", "word"),
    [(["involute", "--rows", 6000], "affine", "better"), (["gmm", "--dim", 3, "--rows", 3000], "mixture", "worse")],
)
def test_a_spiral_is_left_as_it_is_and_independent_columns_are_not(
    bayesnde: Callable, tmp_path: Path, simulated: list, kind: str, word: str
) -> None:
    assert bayesnde("simulate", *simulated, "--out", tmp_path / "d.csv").code == 0
    outcome = bayesnde("prepare", tmp_path / "d.csv", "--run", tmp_path / "auto")
    assert outcome.code == 0, outcome.err
    assert _kinds(tmp_path / "auto") == {kind}
    assert f"nats {word} with standard than with marginal" in outcome.err
    scale = {"affine": "standard", "mixture": "marginal"}[kind]
    asked = bayesnde("prepare", tmp_path / "d.csv", "--run", tmp_path / "asked", "--scale", scale)
    assert "nats" not in asked.err
    for name in ("schema.json", "train.parquet", "test.parquet"):
        chosen, given = ((tmp_path / run / "prepare" / name).read_bytes() for run in ("auto", "asked"))
        assert (chosen == given) is (name == "schema.json")  # the tables carry the run's own name


def test_test_rows_do_not_choose(bayesnde: Callable, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 2))
    lines = [
        f"{a:.6f},{b:.6f},{s}" for (a, b), s in zip(rows, ["train", "validation", "test", "train"] * 100, strict=True)
    ]
    spoilt = [line if line.endswith(("train", "validation")) else "9e3,-7e3,test" for line in lines]
    said = []
    for name, content in (("clean", lines), ("spoilt", spoilt)):
        (tmp_path / f"{name}.csv").write_text("a,b,s\n" + "\n".join(content) + "\n")
        outcome = bayesnde("prepare", tmp_path / f"{name}.csv", "--split-column", "s", "--run", tmp_path / name)
        assert outcome.code == 0, outcome.err
        said.append(next(line for line in outcome.err.splitlines() if line.startswith("scaling: ")))
    assert said[0] == said[1]


def test_a_wide_table_is_scaled_by_its_margins(bayesnde: Callable, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(80, 31))
    np.save(tmp_path / "wide.npy", rows)
    outcome = bayesnde("prepare", tmp_path / "wide.npy", "--run", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert _kinds(tmp_path / "run") == {"mixture"}
    assert "with standard" not in outcome.err


def test_columns_that_only_the_margins_can_scale_are_scaled_by_them(bayesnde: Callable, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(200, 2))
    x[7, 0] = 1e12  # one row takes all digits of float32 away from the others
    np.save(tmp_path / "far.npy", x)
    outcome = bayesnde("prepare", tmp_path / "far.npy", "--run", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert _kinds(tmp_path / "run") == {"mixture"}
