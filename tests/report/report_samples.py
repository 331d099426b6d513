"""Complete data of a report, made up, with names that look like markup."""

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from bayesnde_cli.model.stack import KERNELS, MODEL
from bayesnde_cli.report.collect import LowestRows, ModelFigures, ReportData, ScoredRows, Subject
from bayesnde_cli.report.page import open_templates
from bayesnde_cli.report.plots import Column, PairMap, Training
from bayesnde_cli.report.trust import judge

HOSTILE = '<script>alert("x")</script>&\'\x00'
N_ROWS = 300


def metrics() -> dict[str, Any]:
    """A metrics.json of a good fit."""
    return json.loads(Path(__file__).with_name("good_metrics.json").read_text("utf-8"))


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


def training(stage: str, selected: int = 2) -> Training:
    steps = np.array([0.0, 100.0, 200.0, 300.0])
    losses = {
        "columns": (np.array([5.0]), np.array([1.0])),
        "elbo": (np.arange(1.0, 301.0), np.linspace(5.0, 2.0, 300)),
    }
    return Training(
        stage,
        losses,
        steps,
        np.array([-5.0, -4.5, -4.0, -4.1]),
        np.full(4, 0.1),
        selected,
        n_epochs=30,
    )


def full_data(n_columns: int = 2) -> ReportData:
    """Everything that a report can show."""
    rng = np.random.default_rng(2)
    facts: dict[str, Any] = {
        "run": HOSTILE,
        "files": [HOSTILE],
        "kinds": {"continuous": n_columns},
        "condition": None,
        "latent_dim": 2,
    }
    facts |= {"network": {"width": 256, "depth": 3}, "seconds": {"prepare": 2.0}, "seed": 0, "device": "cpu"}
    facts["members"] = {MODEL: 0.7, KERNELS: 0.3}
    return ReportData(
        subject=Subject(
            title=HOSTILE,
            set_name="test",
            run_option="--run results",
            n_train=2000,
            n_validation=200,
            n_rows=N_ROWS,
            n_features=n_columns,
            facts=facts,
        ),
        metrics=metrics(),
        training=(training("warmstart"), training("refine")),
        rows=scored_rows(),
        model=ModelFigures(
            latent_dim=2,
            seen_log_density={name: rng.normal(-4.0, 1.0, 200) for name in ("train", "validation")},
            columns=tuple(column(f"{HOSTILE}{index}") for index in range(n_columns)),
            pair_maps=tuple(pair_map(i, j) for i in range(n_columns) for j in range(i + 1, n_columns)),
        ),
        lowest=LowestRows(
            ("row", "density", "± se", "verdict", HOSTILE), (("1", "-9", "0.1", "reliable", HOSTILE),), n_columns
        ),
        settings={"warmstart": {"epochs": None, "width": 256, HOSTILE: HOSTILE}},
        fingerprints={HOSTILE: "ab" * 32},
        versions={"bayesnde": "1.0"},
    )


def light_data(**changed: Any) -> ReportData:
    """Data without plots but for the comparison, with other figures: quick to render."""
    full = full_data()
    return ReportData(full.subject, metrics=metrics() | changed, settings=full.settings)


def sentences(data: ReportData) -> dict[str, str]:
    """The text of every check, by its title."""
    trust: Any = open_templates().get_template("trust.html").module
    texts = {trust.titles[check.name]: getattr(trust, check.name)(check.facts) for check in judge(data)}
    return {title: re.sub(r"[ \n]+", " ", html.unescape(text)).strip(" ") for title, text in texts.items()}
