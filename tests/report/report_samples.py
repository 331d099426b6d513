"""Data of a report in full, made up, with names that would love to be markup."""

from dataclasses import replace
from typing import Any

import numpy as np

from bayesnde_cli.report.report_data import (
    Column,
    Limits,
    LossCurve,
    PairMap,
    ReportData,
    ScoredRows,
    Subject,
    TextTable,
    Training,
)

HOSTILE = '<script>alert("x")</script>&\'\x00'
N_ROWS = 300


def metrics() -> dict[str, Any]:
    """A metrics.json of a good fit."""
    quantiles = {"5": -9.0, "25": -6.0, "50": -4.0, "75": -3.0, "95": -2.0}
    return {
        "rows": {"set": "test", "n": 300, "n_reliable": 299, "n_not_finite": 0, "n_incomplete": 0, "n_in_mean": 300,
                 "n_above_1_nat": 0,
                 "verdicts": {"reliable": 299, "chains disagree": 1}, "sha256": "ab" * 32},
        "mean_log_density": -4.0,
        "mean_log_density_se": 0.1,
        "mean_log_density_mc_se": 0.002,
        "mean_log_density_scaled": -2.0,
        "mean_log_density_scaled_se": 0.1,
        "classes": {HOSTILE: {"n": 300, "mean_log_density": -4.0, "mean_log_density_se": 0.1}},
        "truth": {"n": 300, "spearman": 0.99, "pearson": 0.99, "rmse": 0.1, "mean_difference": -0.02},
        "outliers": {"n": 300, "n_outliers": 30, "precision_at_k": 0.5, "auroc": 0.9, "average_precision": 0.6},
        "accuracy": 0.8,
        "accuracy_se": 0.023,
        "confusion_matrix": {"classes": [HOSTILE], "counts": [[300]], "n": 300, "n_without_class": 0},
        "generation": {"n_rows": 300, "ks": 0.05, "rbf_mmd": 0.001, "of_itself": {"ks": 0.04, "rbf_mmd": 0.002}},
        "typicality": {
            "rows": {"n": 300, "n_not_finite": 0, "mean": -4.0, "sd": 1.0, "quantiles": quantiles},
            "simulated": {"n": 300, "n_not_finite": 0, "mean": -4.0, "sd": 1.0, "quantiles": quantiles},
            "mean_difference": 0.0, "ks": 0.04, "ks_p_value": 0.5, "verdict": "no difference found",
            "n_below_all": 1, "n_below_all_p_value": 0.5,
        },
        "baselines": {
            "gaussian": {"mean_log_density": -5.0, "mean_log_density_se": 0.1, "gain": 1.0, "gain_se": 0.1,
                         "chosen": {}, "outliers": {"n_outliers": 30, "auroc": 0.8}},
            "gaussian_mixture": {"mean_log_density": -4.2, "mean_log_density_se": 0.1, "gain": 0.2, "gain_se": 0.05,
                                 "chosen": {"n_fit_rows": 900, "n_train_rows": 2000, "components": 8}},
            "isolation_forest": {"chosen": {}, "outliers": {"n_outliers": 30, "auroc": 0.85}},
        },
        "reasons": {},
    }  # fmt: skip


def scored_rows(n_rows: int = N_ROWS) -> ScoredRows:
    rng = np.random.default_rng(1)
    verdict = np.full(n_rows, "reliable", object)
    verdict[0] = "chains disagree"
    log_density = rng.normal(-4.0, 1.0, n_rows)
    return ScoredRows(
        log_density=log_density,
        mc_se=rng.uniform(0.001, 0.04, n_rows),
        rhat=1.0 + rng.exponential(0.01, n_rows),
        ess=rng.uniform(50, 400, n_rows),
        verdict=verdict,
        truth=log_density + rng.normal(0, 0.1, n_rows),
        is_outlier=np.arange(n_rows) % 10 == 0,
    )


def column(name: str, **more: Any) -> Column:
    rng = np.random.default_rng(len(name))
    return Column(name, rng.normal(size=N_ROWS), rng.normal(size=500), **more)


def pair_map(x_index: int, y_index: int) -> PairMap:
    edges = np.linspace(-3, 3, 11)
    middle = (edges[1:] + edges[:-1]) / 2
    density = np.exp(-0.5 * (middle[:, None] ** 2 + middle[None, :] ** 2))
    return PairMap(x_index, y_index, edges, edges, density)


def training(stage: str, chosen: int = 2) -> Training:
    steps = np.array([0.0, 100.0, 200.0, 300.0])
    curve = LossCurve("elbo", np.arange(1.0, 301.0), np.linspace(5.0, 2.0, 300))
    return Training(stage, (LossCurve("columns", np.array([5.0]), np.array([1.0])), curve), steps,
                    np.array([-5.0, -4.5, -4.0, -4.1]), np.full(4, 0.1), chosen, n_epochs=30)  # fmt: skip


def full_data(n_columns: int = 2) -> ReportData:
    """Everything that a report can show."""
    rng = np.random.default_rng(2)
    columns = tuple(column(f"{HOSTILE}{index}") for index in range(n_columns))
    return ReportData(
        subject=Subject(
            title=HOSTILE, set_name="test", version="0.1.0", run_option="--run results",
            n_train=2000, n_validation=200, n_rows=N_ROWS, n_features=n_columns, facts=(("Data", HOSTILE),),
        ),
        metrics=metrics(),
        training=(training("warmstart"), training("refine")),
        rows=scored_rows(),
        limits=Limits(),
        seen_log_density={name: rng.normal(-4.0, 1.0, 200) for name in ("train", "validation")},
        columns=columns,
        pair_maps=tuple(pair_map(i, j) for i in range(n_columns) for j in range(i + 1, n_columns)),
        lowest=TextTable(("row", "density", "± se", "verdict", HOSTILE), (("1", "-9", "0.1", "reliable", HOSTILE),)),
        settings={"warmstart": {"epochs": None, "width": 256, HOSTILE: HOSTILE}},
        fingerprints=((HOSTILE, "ab" * 32),),
        versions={"bayesnde": "1.0"},
    )  # fmt: skip


def with_metrics(**changed: Any) -> ReportData:
    """The full data with other figures."""
    return replace(full_data(), metrics=metrics() | changed)
