"""Weights as stages read them: they fit their networks, or are refused before anything is computed with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesnde_cli.artifacts.arrays import write_arrays
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.stages.weights import read_networks
from whole_runs import small_networks


def _write(change: Callable[[dict, dict], Any]) -> None:
    arrays, facts = small_networks(np.random.default_rng(0))
    change(arrays, facts)
    write_arrays(Path("run/refine/weights/model.npz"), arrays, facts)


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_networks_come_back_as_they_were() -> None:
    _write(lambda arrays, facts: None)
    found = read_networks(RunLayout(Path("run")), "refine")
    assert (found.decoder.n_in, found.encoder.n_in, found.decoder.n_classes) == (2, 3, 2)
    assert found.weights["decoder/mean/kernel"].shape == (6, 3)


CHANGES: list[tuple[Callable[[dict, dict], Any], str]] = [
    (lambda arrays, facts: facts.pop("decoder"), "decoder is None: 'NoneType' object is not"),
    (lambda arrays, facts: facts["decoder"].pop("heads"), "decoder is {"),
    (
        lambda arrays, facts: facts["decoder"].update(kind="wide"),
        "expected a kind among mlp, residual, to_image, from_image, got 'wide'",
    ),
    (lambda arrays, facts: facts["decoder"].update(depth=10**9), "'depth': 1000000000"),
    (lambda arrays, facts: facts["encoder"].update(width=4.5), "'width': 4.5"),
    (
        lambda arrays, facts: facts["encoder"].update(width=5),
        "encoder/hidden1/bias: float32 (4,), expected float32 (5,)",
    ),
    (lambda arrays, facts: arrays.pop("encoder/sd/bias"), "encoder/sd/bias: none, expected float32 (2,)"),
    (lambda arrays, facts: arrays.update(more=np.zeros(1)), "more: float64 (1,), expected none"),
    (
        lambda arrays, facts: arrays.update({"decoder/mean/bias": np.zeros(3)}),
        "decoder/mean/bias: float64 (3,), expected float32 (3,)",
    ),
]


@pytest.mark.parametrize(("change", "found"), CHANGES, ids=[found for _, found in CHANGES])
def test_what_does_not_fit_is_damaged(change: Callable[[dict, dict], Any], found: str) -> None:
    _write(change)
    with pytest.raises(BadArtifact) as caught:
        read_networks(RunLayout(Path("run")), "refine")
    assert caught.value.what == "run/refine/weights/model.npz is damaged"
    assert found in caught.value.found[0]
    assert caught.value.hint == "run `bayesnde refine --restart`"
