"""All experiments at a glance."""

from typing import Any

from bayesnde_cli.stages.reporting import aligned
from bayesnde_cli.stages.reproduce.experiments import EXPERIMENTS, PAPER, Experiment, typed


class Listing:
    """The list of experiments, for people and for machines."""

    def as_dict(self) -> dict[str, Any]:
        return {"experiments": [_entry(experiment) for experiment in EXPERIMENTS.values()]}

    def __str__(self) -> str:
        rows = [
            [
                typed(experiment), experiment.summary, experiment.figure,
                "" if (figure := experiment.paper.get(PAPER)) is None else f"{figure:g}",
                "all" if experiment.test_rows is None else str(experiment.test_rows),
                ",".join(map(str, experiment.seeds)), ", ".join(experiment.recipes),
            ]
            for experiment in EXPERIMENTS.values()
        ]  # fmt: skip
        header = ["name", "data", "figure", "in the paper", "test rows", "seeds", "recipes"]
        methods = sorted({name for experiment in EXPERIMENTS.values() for name in experiment.methods})
        return f"{aligned(header, rows)}\n\nmethods: {', '.join(methods)}"


def _entry(experiment: Experiment) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "summary": experiment.summary,
        "figure": experiment.figure,
        "paper": dict(experiment.paper),
        "test_rows": experiment.test_rows,
        "seeds": list(experiment.seeds),
        "recipes": list(experiment.recipes),
        "methods": list(experiment.methods),
        "files": list(experiment.files),
    }
