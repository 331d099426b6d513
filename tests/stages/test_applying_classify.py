"""`classify`: Bayes' rule with exact densities, priors, rows without a class, and what is not known."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import DensityConfig
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.stages.applying.class_prior import class_prior
from bayesnde_cli.stages.applying.classify import ClassCounts, Classifier, probabilities, rows_to_classify
from bayesnde_cli.stages.applying.fitted_run import FittedRun, fitted_run
from bayesnde_cli.stages.scoring.engine import Opened
from bayesnde_cli.stages.scoring.job import Asked, make_job
from linear_model import LinearEngine, LinearModel
from scoring_runs import Notes

MODEL = LinearModel(
    weights=np.array([[0.8, 0.1], [-0.5, 0.6], [0.3, 0.4]]),
    offset=np.array([0.1, -0.2, 0.0]),
    variance=np.array([0.3, 0.2, 0.5]),
    shifts=np.array([-0.3, 0.6]),
)


@pytest.fixture
def known(fitted: Path) -> FittedRun:
    return fitted_run(RunLayout(fitted), DensityConfig(block_rows=16))


def _classified(known: FittedRun, prior: str = "training", data: Path | None = None, **engine: tuple) -> pa.Table:
    job = make_job(known.layout, Asked(data=[data] if data else []), known.config)
    classifier = Classifier(known, Opened(LinearEngine(MODEL, **engine), "cpu"), class_prior(known, prior))
    with rows_to_classify(job, known.schema, Notes()) as rows:
        return pa.Table.from_batches(list(classifier.batches(rows)), classifier.columns(rows))


def _exact(known: FittedRun, prior: np.ndarray) -> np.ndarray:
    """p(y | x) of the test rows from the closed form, (rows, classes)."""
    import pyarrow.parquet as pq

    x = np.array(pq.read_table(known.layout.split_file("test"), columns=["x_scaled"])["x_scaled"].to_pylist())
    joint = np.exp([MODEL.log_density(x, [0, 1, 2], index) for index in (0, 1)]).T * prior
    return joint / joint.sum(axis=1, keepdims=True)


def _p(table: pa.Table) -> np.ndarray:
    return np.stack([table["p_u"].to_numpy(), table["p_v"].to_numpy()], axis=1)


def test_probabilities_are_those_of_bayes_rule(known: FittedRun) -> None:
    table = _classified(known)
    assert np.allclose(_p(table), _exact(known, known.class_shares), atol=1e-6)
    assert np.allclose(_p(table).sum(axis=1), 1.0, atol=1e-12)
    assert table["predicted"].to_pylist() == ["uv"[index] for index in _p(table).argmax(axis=1)]
    assert table.column_names == ["row_id", "predicted", "p_u", "p_v", "log_density", "mc_se", "reliable",
                                  "n_gradients", "name", "k", "true_log_density"]  # fmt: skip
    assert table["mc_se"].to_pylist() == [0.01 if name == "u" else 0.02 for name in table["predicted"].to_pylist()]


def test_the_prior_matters(known: FittedRun) -> None:
    uniform = _classified(known, "uniform")
    assert np.allclose(_p(uniform), _exact(known, np.array([0.5, 0.5])), atol=1e-6)
    assert not np.allclose(_p(uniform), _p(_classified(known)), atol=1e-3)
    given = _classified(known, "v=3,u=1")
    assert np.allclose(_p(given), _exact(known, np.array([0.25, 0.75])), atol=1e-6)
    assert _p(_classified(known, "u=0,v=2")).tolist() == [[0.0, 1.0]] * len(_p(given))


def test_the_density_is_that_of_the_predicted_class_in_the_units_of_the_file(known: FittedRun) -> None:
    import pyarrow.parquet as pq

    test = pq.read_table(known.layout.split_file("test"))
    x, log_jacobian = np.array(test["x_scaled"].to_pylist()), test["log_jacobian"].to_numpy()
    table = _classified(known)
    best = _p(table).argmax(axis=1)
    by_class = np.stack([MODEL.log_density(x, [0, 1, 2], index) for index in (0, 1)], axis=1)
    assert np.allclose(table["log_density"], by_class[np.arange(len(x)), best] + log_jacobian, atol=1e-6)


def _lines(rows: Iterator[str], path: Path, header: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_rows_need_no_class_and_may_lack_cells(known: FittedRun, tmp_path: Path) -> None:
    cells = [f"{0.1 * i:.2f},{0.5 + i / 9:.3f},{i % 7}" for i in range(20)]
    bare = _classified(known, data=_lines(iter(cells), tmp_path / "bare.csv", "a,b,n"))
    assert bare.column_names == ["row_id", "predicted", "p_u", "p_v", "log_density", "mc_se", "reliable",
                                 "n_gradients"]  # fmt: skip
    labelled = [f"{line},{'uv'[i % 2]}" for i, line in enumerate(cells)]
    with_class = _classified(known, data=_lines(iter(labelled), tmp_path / "labelled.csv", "a,b,n,k"))
    assert with_class.column_names[-1] == "k"
    assert np.array_equal(_p(with_class), _p(bare))
    half = [f"{line},{'u' if i % 2 else ''}" for i, line in enumerate(cells)]
    assert "k" not in _classified(known, data=_lines(iter(half), tmp_path / "half.csv", "a,b,n,k")).column_names
    gaps = _classified(known, data=_lines(iter(["0.5,,2", ",,"]), tmp_path / "gaps.csv", "a,b,n"))
    assert np.allclose(_p(gaps)[1], known.class_shares)  # nothing is known of it
    assert gaps["log_density"].to_pylist()[1] == 0.0
    assert not np.allclose(_p(gaps)[0], known.class_shares)


def test_blocks_are_deterministic(known: FittedRun) -> None:
    assert _classified(known).equals(_classified(known))


def test_what_is_not_known_is_null_and_not_reliable(known: FittedRun) -> None:
    lost = _classified(known, lost=(1,))
    assert lost["predicted"].null_count == lost.num_rows
    assert np.isnan(_p(lost)).all()
    assert not any(lost["reliable"].to_pylist())
    ruled_out = _classified(known, "u=1,v=0", lost=(1,))  # its density is not asked for
    assert set(ruled_out["predicted"].to_pylist()) == {"u"}


def test_a_doubtful_density_of_a_class_without_weight_does_no_harm(known: FittedRun) -> None:
    table = _classified(known, doubtful=(1,))
    expected = (_p(table)[:, 1] < 1e-3).tolist()
    assert table["reliable"].to_pylist() == expected
    assert not all(expected)
    assert all(_classified(known, "u=1,v=0", doubtful=(1,))["reliable"].to_pylist())


def test_counts_and_accuracy(known: FittedRun) -> None:
    cells = {"predicted": ["u", "v", None], "reliable": [True, False, False], "n_gradients": [1, 2, 6], "k": ["u"] * 3}
    batches = [pa.record_batch(cells)]
    for truth, accuracy in (("k", 1 / 3), (None, None)):
        counts = ClassCounts(("u", "v"), truth)
        for batch in batches:
            counts.add(batch)
        found = counts.result("test")
        assert (found.n_rows, found.n_reliable, found.classes, found.accuracy) == (3, 1, {"u": 1, "v": 1}, accuracy)
        assert found.n_gradients == 3.0
    assert str(found) == "test: 3 rows (u 1, v 1), 1 reliable, 3 gradients a row"


def test_probabilities_do_not_underflow() -> None:
    p = probabilities(np.array([[-4000.0, -4001.0], [-np.inf, -3.0], [-np.inf, -np.inf]]), np.array([0.5, 0.5]))
    assert p[0] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])
    assert p[1].tolist() == [0.0, 1.0]
    assert np.isnan(p[2]).all()


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ("even", "--prior cannot be 'even'\n  'even' is no NAME=VALUE\n"),
        ("u=1", "--prior names 1 of 2 classes\n  missing: v\n"),
        ("u=1,w=2", "--prior: there is no class 'w'\n  classes: u, v\n"),
        ("u=1,v=-2", "--prior: '-2' is no weight of class 'v'\n"),
        ("u=1,v=two", "--prior: 'two' is no weight of class 'v'\n"),
        ("u=1,u=2", "--prior names class 'u' twice\n"),
        ("u=0,v=0", "--prior rules every class out\n"),
    ],
)
def test_a_prior_that_cannot_be_is_refused(known: FittedRun, prior: str, message: str) -> None:
    with pytest.raises(BadUsage) as refused:
        class_prior(known, prior)
    assert str(refused.value).startswith(f"error: {message}")
