"""An arm on images, with stand-ins for training and the first look: classified block by block, and gone on with."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import fake_training
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import PosteriorConfig
from bayesnde_cli.stages.reproduce import image_arm, rows
from bayesnde_cli.stages.scoring.engine import Opened
from bayesnde_cli.stages.scoring.first_look import FirstFigures
from bayesnde_cli.stages.training import fitting
from fake_engine import FakeEngine

N_TEST = 70
LINE = ("reproduce", "mnist", "--train-rows", "300", "--test-rows", str(N_TEST), "--set", "warmstart.epochs=2",
        "--set", "refine.epochs=2", "--set", "density.chains=2", "--set", "density.draws=4")  # fmt: skip
FOLDER = Path("run/reproduce/mnist/default-seed0")


class _Look:
    """The first class is likeliest for every image; may fail in its n-th block."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.n_blocks, self._fails_at = 0, fails_at

    def __call__(self, x: np.ndarray, seed: int, prior: np.ndarray, known: np.ndarray) -> FirstFigures:
        self.n_blocks += 1
        assert known.shape == (len(x),)  # the density given the true class is wanted
        if self.n_blocks == self._fails_at:
            raise KeyboardInterrupt
        log_density, se = np.tile(-100.0 * np.arange(10.0), (len(x), 1)), np.full((len(x), 10), 0.1)
        return FirstFigures(log_density, se, np.full(len(x), 990))


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., _Look]:
    """A stand-in for the first look, put in place; the raw files are scikit-learn's digits."""
    digits = load_digits()
    np.savez(tmp_path / "digits.npz", images=digits.images.astype(np.uint8), label=digits.target)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rows, "found_files", lambda *_: [tmp_path / "digits.npz"])
    for name in ("phases_of", "Judge"):
        monkeypatch.setattr(fitting, name, getattr(fitting, name))  # put back afterwards
    fake_training.install()

    def install(**options: int) -> _Look:
        found = _Look(**options)

        def factory(layout: RunLayout, config: PosteriorConfig) -> Opened:
            return Opened(FakeEngine(config), "fake", found)

        monkeypatch.setattr(image_arm, "open_engine", factory)
        return found

    return install


def test_images_are_classified_and_the_first_ones_of_the_test_set_at_that(bayesnde: Callable, look: Callable) -> None:
    seen = look()
    outcome = bayesnde(*LINE)
    assert outcome.code == 0, outcome.err
    assert seen.n_blocks == -(-N_TEST // image_arm.BLOCK_ROWS)
    found = json.loads((FOLDER / "result.json").read_text())
    labels = load_digits().target
    n_kept = round(0.71428 * len(labels)) + round(0.14286 * len(labels))
    share = np.mean(labels[n_kept : n_kept + N_TEST] == 0)
    assert found["figures"]["accuracy"] == pytest.approx(share, abs=1.5 / N_TEST)
    assert (found["figures"]["n"], found["figures"]["n_gradients"], found["test_rows"]) == (N_TEST, 990.0, N_TEST)
    assert found["figures"]["bits_per_dimension"] > 0.0
    assert found["settings"][-1] == "prepare.train_rows=300"
    assert json.loads((FOLDER / "prepare/manifest.json").read_text())["config"]["train_rows"] == 300
    # Once more: nothing is done again.
    assert bayesnde(*LINE).code == 0
    assert seen.n_blocks == -(-N_TEST // image_arm.BLOCK_ROWS)


def test_an_arm_that_was_stopped_goes_on_with_the_next_block(bayesnde: Callable, look: Callable) -> None:
    seen = look(fails_at=2)
    assert bayesnde(*LINE).code != 0
    assert not (FOLDER / "result.json").exists()
    seen = look()
    assert bayesnde(*LINE).code == 0
    assert seen.n_blocks == -(-N_TEST // image_arm.BLOCK_ROWS) - 1
    before = (FOLDER / "result.json").read_text()
    seen = look()
    assert bayesnde(*LINE, "--restart").code == 0
    assert seen.n_blocks == -(-N_TEST // image_arm.BLOCK_ROWS)
    keys = ("figures", "chosen", "rows_sha256")
    old, new = json.loads(before), json.loads((FOLDER / "result.json").read_text())
    assert [old[key] for key in keys] == [new[key] for key in keys]


def test_an_arm_that_cannot_begin_does_not_load_tensorflow() -> None:
    """It would say so on its own, before anybody holds it back."""
    code = "import sys, bayesnde_cli.stages.reproduce.image_arm; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
