"""The benchmark of training: it runs, and it counts operations as one does by hand."""

import importlib.util
import json
import math
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "training.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("training_benchmark", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_passes_through_two_layers_are_counted_as_by_hand(benchmark) -> None:
    # 10 rows through 3 -> 5 -> 2: a multiplication and an addition for each of 15 and 10 weights.
    layers = [(3, 5), (5, 2)]
    assert benchmark.forward(layers, 10) == 300 + 200
    assert benchmark.for_inputs(layers, 10) == 2 * 500
    assert benchmark.for_both(layers, 10) == 3 * 500
    # Nobody asks for the gradient of the data: the first layer has its weights' product only.
    assert benchmark.for_weights(layers, 10) == 3 * 500 - 300


def test_steps_of_one_layer_networks_are_counted_as_by_hand(benchmark) -> None:
    # One row, so a forward pass is twice the weights: decoder 12, encoder 24 or, one head, 12, critics 6, 4.
    networks = benchmark.NetworkKernels(
        decoder=[(2, 3)], encoder=[(3, 4)], code=[(3, 2)], discriminator_x=[(3, 1)], discriminator_z=[(2, 1)]
    )
    counted = {name: count(networks, 1) for name, count in benchmark.FLOP.items()}
    # G(z), E(x): 24. Critics: 2 batches * 2 products * (6 + 4) = 40. Autoencoder: 2 * 24 + 3 * 24. Fooling: 2 * 10.
    assert counted["egm"] == counted["egm-all"] == 24 + 40 + 48 + 72 + 20
    assert counted["elbo"] == 2 * 24 + 3 * 12
    assert counted["importance"] == 2 * 24 + 3 * 8 * 12
    assert counted["map"] == 2 * 12 + 2 * 12
    assert counted["map-regularised"] == counted["map"] + 2 * 12
    assert counted["posterior"] == 2 * 6 * 24 + 12 + 2 * 12


def test_a_run_prints_a_line_and_writes_sound_figures(benchmark, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(benchmark, "SHAPES", ((2, 1),))  # residual networks take XLA ten seconds
    path = tmp_path / "training.json"
    arguments = ["--only", "elbo", "--seconds", "0.05", "--rows", "512", "--width", "16", "--json", str(path)]
    benchmark.main(arguments)
    [case] = json.loads(path.read_text("utf-8"))["cases"]
    figures = [value for value in case.values() if isinstance(value, float)]
    assert len(figures) == 10
    assert all(math.isfinite(figure) and figure > 0.0 for figure in figures)
    # 256 rows; 4 products between hidden layers of 16. Encoder 2 -> 16 and two heads 16 -> 1, decoder 1 -> 16, 16 -> 2.
    encoder, decoder = 3 * (4 * 256 + 32) + 2 * 32, 3 * (4 * 256 + 64 + 16)
    assert case["gflop"] == pytest.approx(2 * 256 * (encoder + decoder) / 1e9)
    assert case["authors_cpu_ms"] is case["authors_ratio"] is None
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["TensorFlow", "objective", "elbo"]


def test_an_unknown_objective_is_refused(benchmark, capsys) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(["--only", "gan"])
    assert "invalid choice: 'gan'" in capsys.readouterr().err
