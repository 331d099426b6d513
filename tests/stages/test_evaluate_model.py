"""The fitted model behind `evaluate`, with real (untrained) networks: its rows and its quick log-densities agree."""

from pathlib import Path

import numpy as np
import pytest

from bayesnde_cli.artifacts.arrays import write_arrays
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import EvaluateConfig
from bayesnde_cli.evaluation.typicality import TYPICAL
from bayesnde_cli.stages.evaluate import open_model
from bayesnde_cli.stages.evaluate.own_rows import own_density_figures


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    """A run with the weights of a small conditional model of three columns, two latents and two classes."""
    from dataclasses import asdict, replace

    from bayesnde_cli.model.decoder import decoder_spec
    from bayesnde_cli.model.encoder import encoder_spec
    from bayesnde_cli.training.joint_parameters import initial_autoencoder

    layout = RunLayout(tmp_path_factory.mktemp("model") / "run")
    specs = [replace(spec(2, 3, 2), width=8, depth=1) for spec in (decoder_spec, encoder_spec)]
    weights = {name: value.numpy() for name, value in initial_autoencoder(*specs, 0).items()}
    facts = {"decoder": asdict(specs[0]), "encoder": asdict(specs[1]), "run_id": "r"}
    path: Path = layout.weights_dir("refine") / "model.npz"
    path.parent.mkdir(parents=True)
    write_arrays(path, weights, facts)
    return layout


def test_rows_of_the_model_look_typical_to_it_and_shifted_ones_do_not(layout: RunLayout) -> None:
    from bayesnde_cli.stages.training.rows import Rows

    config = EvaluateConfig(seed=0, typicality_rows=300)
    model = open_model(layout, config)
    y = np.eye(2, dtype=np.float32)[np.arange(300) % 2]
    x = model.simulate(300, y, 12345)
    assert (x.shape, x.dtype) == ((300, 3), np.float32)
    assert np.array_equal(x, model.simulate(300, y, 12345))
    assert not np.array_equal(x, model.simulate(300, y, 12346))

    def figures(x: np.ndarray) -> dict:
        return own_density_figures(model, Rows(np.arange(300), x, np.zeros(300), y), config)

    own = figures(x)
    assert own["verdict"] == TYPICAL
    assert own == figures(x)
    shifted = figures(x + np.float32(2.0))
    assert shifted["verdict"].startswith("rows have lower density than the model's own rows")
