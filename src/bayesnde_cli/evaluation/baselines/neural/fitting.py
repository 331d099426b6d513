"""A neural density, from rows with their classes to scores."""

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import torch

from bayesnde_cli.evaluation.baselines.fitted import Fitted, FittedParts, by_class, some_rows
from bayesnde_cli.evaluation.baselines.kept import Keeper, KeptState
from bayesnde_cli.evaluation.baselines.neural import PACKAGES, autoregressive, residual
from bayesnde_cli.evaluation.baselines.neural.flow_matching import FlowMatching
from bayesnde_cli.evaluation.baselines.neural.training import Length, Rows, one_thread, train
from bayesnde_cli.evaluation.baselines.parts import Part
from bayesnde_cli.evaluation.figures import Figures
from bayesnde_cli.rng import derive_seed

# Rows that are looked at while training, and rows that are scored at once.
_MOST_LOOK_ROWS = 1_000
_ROWS_AT_ONCE = 4_096
# With another version of theirs a state that was kept may be of another network.
_VERSIONS = tuple(version(package) for package in PACKAGES)


class Kind(NamedTuple):
    """A network by its number of columns and classes, how long it is trained, and what to say of it."""

    make: Callable[[int, int], torch.nn.Module]
    length: Length
    settings: Figures
    is_conditional: bool = True  # one network for all classes; else one for each


KINDS: Mapping[str, Kind] = {
    "made": Kind(autoregressive.made, Length(), {"transforms": 1, "hidden": "2x100"}),
    "maf": Kind(autoregressive.maf, Length(), {"transforms": 10, "hidden": "2x100"}),
    "realnvp": Kind(autoregressive.realnvp, Length(), {"transforms": 10, "hidden": "2x100"}),
    "nsf": Kind(autoregressive.nsf, Length(), {"transforms": 5, "hidden": "2x128", "bins": 8}),
    # Its steps are cheap and its loss is noisy: it gets more of them.
    "cfm": Kind(FlowMatching, Length(steps=20_000, look_every=500, patience=5_000), {"hidden": "2x256"}),
    # Steps of a hundred blocks would take hours without a GPU. It learns slowly, and a look costs many steps.
    "resflow": Kind(
        residual.ResidualFlow,
        Length(steps=3_000, weight_decay=1e-5, most_epochs_unseen=None),
        {"blocks": residual.N_BLOCKS, "paper_blocks": 100, "hidden": f"2x{residual.HIDDEN}"},
        is_conditional=False,
    ),
}


def fit_network(
    name: str, train: Part, validation: Part, *, seed: int, share: float = 1.0, keeper: Keeper | None = None
) -> FittedParts:
    """The fitted network: one for all classes, or an expert for each."""
    kind = KINDS[name]

    def one(train: Part, validation: Part, seed: int) -> FittedParts:
        length = kind.length.shortened(share).of_rows(len(train.cells))
        kept = KeptState(keeper, (name, kind.settings, length, seed, _VERSIONS), train, validation)
        return _fit_one(kind, train, validation, length, seed, kept)

    if kind.is_conditional or train.classes is None:
        return one(train, validation, seed)

    def expert(train_cells: np.ndarray, validation_cells: np.ndarray, seed: int) -> Fitted:
        fitted = one(Part(train_cells), Part(validation_cells), seed)
        return Fitted(lambda cells: fitted.score(Part(cells)), fitted.chosen)

    return by_class(expert)(train, validation, seed)


def _fit_one(
    kind: Kind, train_part: Part, validation: Part, length: Length, seed: int, kept: KeptState
) -> FittedParts:  # fmt: skip
    known = None if train_part.classes is None else np.unique(train_part.classes)
    n_classes = 0 if known is None else int(known[-1]) + 1
    looked_at = some_rows(np.arange(len(validation.cells)), _MOST_LOOK_ROWS, seed)
    with one_thread():
        with torch.random.fork_rng(devices=[]):  # initial weights know no generator but the global one
            torch.manual_seed(_torch_seed(seed, "weights"))
            network = kind.make(train_part.cells.shape[1], n_classes)
        random = torch.Generator().manual_seed(_torch_seed(seed, "batches"))
        looks = _rows(_some(validation, looked_at), n_classes)
        done = train(network, _rows(train_part, n_classes), looks, length, random, kept)
        network.before_scoring()
        with torch.no_grad():
            settled = network.settle(looks.x, looks.context)

    def score(part: Part) -> np.ndarray:
        found = np.empty(len(part.cells))
        for start in range(0, len(found), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            rows = _rows(_some(part, some), n_classes)
            with one_thread(), torch.no_grad():
                found[some] = network.log_density(rows.x, rows.context).numpy()
        if known is not None and part.classes is not None:
            found[~np.isin(part.classes, known)] = np.nan  # a class without training rows has no density
        return found

    n_train = len(train_part.cells)
    chosen = kind.settings | settled | {"steps": done.steps, "best_step": done.best_step, "n_skipped": done.n_skipped}
    chosen |= {"n_fit_rows": n_train, "n_train_rows": n_train}
    return FittedParts(score, chosen if n_classes == 0 else chosen | {"fit": "conditional"})


def _some(part: Part, rows: slice | np.ndarray) -> Part:
    return Part(part.cells[rows], None if part.classes is None else part.classes[rows])


def _rows(part: Part, n_classes: int) -> Rows:
    """The rows in float32, their classes one-hot."""
    x = torch.from_numpy(part.cells).float()
    if n_classes == 0:
        return Rows(x, None)
    assert part.classes is not None
    return Rows(x, torch.from_numpy(part.classes[:, None] == np.arange(n_classes)).float())


def _torch_seed(seed: int, purpose: str) -> int:
    return derive_seed(seed, purpose) % 2**63  # PyTorch's seeds are signed
