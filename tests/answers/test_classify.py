"""`classify`: Bayes' rule with exact densities, priors, rows without a class, and what is not known."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bayesnde_cli.answers import FittedRun, fitted_run
from bayesnde_cli.answers.classify import Classified, Classifier, class_prior, probabilities, rows_to_classify
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import DensitySettings
from bayesnde_cli.stages.loading import Opened
from bayesnde_cli.stages.scoring_job import Asked, make_job
from linear_model import OF_FITTED, LinearEngine
from scoring_runs import Notes

COLUMNS = "row_id predicted p_u p_v log_density mc_se reliable n_gradients"


@pytest.fixture
def known(fitted: Path) -> FittedRun:
    return fitted_run(RunLayout(fitted), DensitySettings(block_rows=16))


def _classified(known: FittedRun, prior: str = "training", data: Path | None = None, **engine: Any) -> pa.Table:
    job = make_job(known.layout, Asked(data=[data] if data else []), known.config)
    classifier = Classifier(known, Opened(LinearEngine(OF_FITTED, **engine), "cpu"), class_prior(known, prior))
    with rows_to_classify(job, known.schema, Notes()) as rows:
        return pa.Table.from_batches(list(classifier.batches(rows)), classifier.columns(rows))


def _exact(known: FittedRun, prior: np.ndarray) -> np.ndarray:
    """p(y | x) of the test rows from the closed form, (rows, classes)."""
    x = np.array(pq.read_table(known.layout.split_file("test"), columns=["x_scaled"])["x_scaled"].to_pylist())
    joint = np.exp([OF_FITTED.log_density(x, [0, 1, 2], index) for index in (0, 1)]).T * prior
    return joint / joint.sum(axis=1, keepdims=True)


def _p(table: pa.Table) -> np.ndarray:
    return np.stack([table["p_u"].to_numpy(), table["p_v"].to_numpy()], axis=1)


def test_probabilities_and_densities_are_those_of_bayes_rule(known: FittedRun) -> None:
    table = _classified(known)
    assert table.equals(_classified(known))
    assert np.allclose(_p(table), _exact(known, known.class_shares), atol=1e-6)
    assert np.allclose(_p(table).sum(axis=1), 1.0, atol=1e-12)
    best = _p(table).argmax(axis=1)
    assert table["predicted"].to_pylist() == ["uv"[index] for index in best]
    assert " ".join(table.column_names) == f"{COLUMNS} name k true_log_density"
    assert table["mc_se"].to_pylist() == [0.01 if name == "u" else 0.02 for name in table["predicted"].to_pylist()]
    test = pq.read_table(known.layout.split_file("test"))
    x, log_jacobian = np.array(test["x_scaled"].to_pylist()), test["log_jacobian"].to_numpy()
    by_class = np.stack([OF_FITTED.log_density(x, [0, 1, 2], index) for index in (0, 1)], axis=1)
    assert np.allclose(table["log_density"], by_class[np.arange(len(x)), best] + log_jacobian, atol=1e-6)


def test_the_prior_matters(known: FittedRun) -> None:
    uniform = _classified(known, "uniform")
    assert np.allclose(_p(uniform), _exact(known, np.array([0.5, 0.5])), atol=1e-6)
    assert not np.allclose(_p(uniform), _p(_classified(known)), atol=1e-3)
    given = _classified(known, "v=3,u=1")
    assert np.allclose(_p(given), _exact(known, np.array([0.25, 0.75])), atol=1e-6)
    assert _p(_classified(known, "u=0,v=2")).tolist() == [[0.0, 1.0]] * len(_p(given))


def _file(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_rows_need_no_class_and_may_lack_cells(known: FittedRun, tmp_path: Path) -> None:
    cells = [f"{0.1 * i:.2f},{0.5 + i / 9:.3f},{i % 7}" for i in range(20)]
    bare = _classified(known, data=_file(tmp_path / "bare.csv", "a,b,n", *cells))
    assert " ".join(bare.column_names) == COLUMNS
    labelled = [f"{line},{'uv'[i % 2]}" for i, line in enumerate(cells)]
    with_class = _classified(known, data=_file(tmp_path / "labelled.csv", "a,b,n,k", *labelled))
    assert with_class.column_names[-1] == "k"
    assert np.array_equal(_p(with_class), _p(bare))
    half = [f"{line},{'u' if i % 2 else ''}" for i, line in enumerate(cells)]
    assert "k" not in _classified(known, data=_file(tmp_path / "half.csv", "a,b,n,k", *half)).column_names
    gaps = _classified(known, data=_file(tmp_path / "gaps.csv", "a,b,n", "0.5,,2", ",,"))
    assert np.allclose(_p(gaps)[1], known.class_shares)  # no cell is known
    assert gaps["log_density"].to_pylist()[1] == 0.0
    assert not np.allclose(_p(gaps)[0], known.class_shares)


def test_unknown_densities_are_null_and_doubtful_ones_matter_if_the_class_has_weight(known: FittedRun) -> None:
    lost = _classified(known, lost=(1,))
    assert lost["predicted"].null_count == lost.num_rows
    assert np.isnan(_p(lost)).all()
    assert not any(lost["reliable"].to_pylist())
    ruled_out = _classified(known, "u=1,v=0", lost=(1,))  # its density is not needed
    assert set(ruled_out["predicted"].to_pylist()) == {"u"}
    table = _classified(known, doubtful=(1,))
    expected = (_p(table)[:, 1] < 1e-3).tolist()
    assert table["reliable"].to_pylist() == expected
    assert not all(expected)
    assert all(_classified(known, "u=1,v=0", doubtful=(1,))["reliable"].to_pylist())


def test_counts_and_accuracy() -> None:
    cells = {"predicted": ["u", "v", None], "reliable": [True, False, False], "n_gradients": [1, 2, 6], "k": ["u"] * 3}
    for truth, accuracy in (("k", 1 / 3), (None, None)):
        found = Classified("test", ("u", "v"), truth)
        found.add(pa.record_batch(cells))
        assert found.as_dict() == {
            "set_name": "test",
            "n_rows": 3,
            "n_reliable": 1,
            "classes": {"u": 1, "v": 1},
            "accuracy": accuracy,
            "n_gradients": 3.0,
        }
    assert str(found) == "test: 3 rows (u 1, v 1), 1 reliable, 3 gradients a row"


def test_probabilities_do_not_underflow() -> None:
    p = probabilities(np.array([[-4000.0, -4001.0], [-np.inf, -3.0], [-np.inf, -np.inf]]), np.array([0.5, 0.5]))
    assert p[0] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])
    assert p[1].tolist() == [0.0, 1.0]
    assert np.isnan(p[2]).all()


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ("even", "--prior cannot be 'even'\n  'even' is not NAME=VALUE\n"),
        ("u=1", "--prior names 1 of 2 classes\n  missing: v\n"),
        ("u=1,w=2", "--prior: there is no class 'w'\n  classes: u, v\n"),
        ("u=1,v=-2", "--prior: '-2' is not a weight of class 'v'\n"),
        ("u=1,v=two", "--prior: 'two' is not a weight of class 'v'\n"),
        ("u=1,u=2", "--prior names class 'u' twice\n"),
        ("u=0,v=0", "--prior rules every class out\n"),
    ],
)
def test_a_prior_that_cannot_be_is_refused(known: FittedRun, prior: str, message: str) -> None:
    with pytest.raises(BadUsage) as refused:
        class_prior(known, prior)
    assert str(refused.value).startswith(f"error: {message}")
