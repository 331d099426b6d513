"""The model's own rows against the rows at hand: do they look alike, and are they as likely?"""

from collections.abc import Mapping, Sequence

import numpy as np

from bayesnde_cli.config import EvaluateConfig
from bayesnde_cli.evaluation.figures import Figures, figure
from bayesnde_cli.evaluation.typicality import typicality_figures
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.stages.evaluate.model import Model
from bayesnde_cli.stages.training.rows import Rows, labels_like
from bayesnde_cli.training.diagnostics import class_weighted, diagnose, diagnose_by_class


def generation_figures(model: Model, rows: Rows, config: EvaluateConfig, class_names: Sequence[str]) -> Figures:
    """The paper's eight diagnostics (S4) of simulated rows; with classes within each, and their weighted mean.

    `of_itself` has the same of as many rows of the model as there are real ones: what a perfect model comes to.
    """
    seed = _seed(config, "generation")
    real = rows.sample(config.generated_rows, seed)
    y = labels_like(real.y, config.generated_rows)
    generated = model.simulate(config.generated_rows if y is None else len(y), y, seed)
    own = model.simulate(len(real.x), real.y, derive_seed(seed, "of itself"))
    counts = {"n_rows": len(real.x), "n_generated": len(generated)}
    if real.y is None or y is None:
        whole, of_itself = (_checked(diagnose(x, generated, seed=seed)) for x in (real.x, own))
        return counts | whole | {"of_itself": of_itself}
    classes, generated_class = real.y.argmax(axis=1), y.argmax(axis=1)
    found = [
        diagnose_by_class(x, generated, real_class=classes, generated_class=generated_class, seed=seed)
        for x in (real.x, own)
    ]
    whole, of_itself = (_checked(class_weighted(by_class, classes)) for by_class in found)
    by_name = {class_names[index]: _checked(by_class) for index, by_class in found[0].items()}
    return counts | whole | {"of_itself": of_itself, "classes": by_name}


def own_density_figures(model: Model, rows: Rows, config: EvaluateConfig) -> Figures:
    """Log-densities of the rows and of simulated ones, in the model's space, by the same quick estimator."""
    seed = _seed(config, "typicality")
    some = rows.sample(config.typicality_rows, seed)
    y = labels_like(some.y, config.typicality_rows)
    simulated = model.simulate(config.typicality_rows if y is None else len(y), y, seed)
    # In one go: as every block is then of one size, there is one program to compile.
    x, given = np.concatenate([some.x, simulated]), None if y is None or some.y is None else np.concatenate([some.y, y])
    found = model.log_density(x, given, derive_seed(seed, "log-density"))
    return typicality_figures(found[: len(some.x)], found[len(some.x) :])


def _seed(config: EvaluateConfig, purpose: str) -> int:
    assert config.seed is not None
    return derive_seed(config.seed, "evaluate", purpose)


def _checked(diagnostics: Mapping[str, float]) -> Figures:
    return {name: figure(value) for name, value in diagnostics.items()}
