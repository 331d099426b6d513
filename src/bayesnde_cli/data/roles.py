"""What each column of the file is for: feature, label, truth, identity, split, or nothing."""

import fnmatch
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bayesnde_cli.config import PrepareConfig, nearest_hint
from bayesnde_cli.errors import BadInput, BadUsage, escaped

# `simulate` writes the exact log-density under this name.
TRUTH_NAME = "true_log_density"

_LONGEST_SHOWN = 60

# Columns that our own tables carry beside the user's.
RESERVED_NAMES = [
    "row_id",
    "x_scaled",
    "log_jacobian",
    "log_density",
    "log_density_scaled",
    "mc_se",
    "log_density_is",
    "mc_se_is",
    "overlap",
    "ess_min",
    "rhat_max",
    "missed_mass",
    "acceptance",
    "divergences",
    "bridge_iterations",
    "converged",
    "reliable",
    "verdict",
    "n_observed",
    "n_gradients",
    "n_likelihoods",
]


@dataclass(frozen=True)
class Roles:
    """The columns that are used, each with one role."""

    features: tuple[str, ...]
    condition: str | None = None
    outlier_label: str | None = None
    truth: str | None = None
    id: str | None = None
    split: str | None = None
    ignored: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns that travel with a row but are not features, in a fixed order."""
        return tuple(name for name in (self.id, self.condition, self.outlier_label, self.truth) if name is not None)

    @property
    def used(self) -> tuple[str, ...]:
        """All columns to be read."""
        return (*self.features, *self.labels, *((self.split,) if self.split else ()))

    def of(self, name: str) -> str:
        """The role of a used column, for people."""
        by_name = {
            self.condition: "condition",
            self.outlier_label: "outlier label",
            self.truth: "truth",
            self.id: "id",
            self.split: "split",
        }
        return by_name.get(name, "feature")


def assign_roles(names: Sequence[str], config: PrepareConfig) -> Roles:
    """The role of every column, by the flags; 'true_log_density' is the truth unless a flag says otherwise."""
    single = {
        "condition": config.condition,
        "outlier_label": config.outlier_label,
        "truth": config.truth,
        "id": config.id,
        "split": config.split_column,
    }
    for role, name in single.items():
        if name is not None:
            _require_column(name, names, option=_option(role))
    dropped = match_columns(config.drop, names, option="--drop")
    named = {name for name in (*single.values(), *dropped) if name is not None}
    features = tuple(
        name
        for name in match_columns(config.features, names, option="--features")
        # A pattern yields to a role by name: --features '*' --condition y means all but y.
        if name not in named or _is_named(name, config.features)
    )
    if single["truth"] is None and TRUTH_NAME in names and not _is_named(TRUTH_NAME, (*config.features, *named)):
        single["truth"] = TRUTH_NAME
        features = tuple(name for name in features if name != TRUTH_NAME)

    _refuse_two_roles(features, dropped, single)
    taken = {name for name in single.values() if name is not None}
    chosen = features or tuple(name for name in names if name not in taken and name not in dropped)
    if not chosen:
        raise BadUsage(
            "no column is left to model",
            found=f"columns: {listed(names)}",
            hint="leave at least one column without a role, or name features with --features",
        )
    used = {*chosen, *taken}
    for name in names:
        if name in used and name in RESERVED_NAMES:
            raise BadInput(
                f"column '{name}' has a name that bayesnde writes itself",
                found=f"reserved: {', '.join(RESERVED_NAMES)}",
                hint=f"rename it in the file, or leave it out with --drop {quoted(name)}",
            )
    return Roles(
        features=chosen,
        condition=single["condition"],
        outlier_label=single["outlier_label"],
        truth=single["truth"],
        id=single["id"],
        split=single["split"],
        ignored=tuple(name for name in names if name not in used),
    )


def _is_named(name: str, items: Collection[str]) -> bool:
    """Whether a column is named in full, alone or in a list."""
    return any(name == item or name in (piece.strip() for piece in item.split(",")) for item in items)


def match_columns(wanted: Sequence[str], names: Sequence[str], *, option: str, what: str = "column") -> tuple[str, ...]:
    """The columns that a list of names, comma-separated names and patterns stands for, in the file's order."""
    matched: set[str] = set()
    for item in wanted:
        pieces = [item] if item in names else [piece.strip() for piece in item.split(",")]
        for piece in pieces:
            hits = [piece] if piece in names else fnmatch.filter(names, piece)
            if not hits:
                _require_column(piece, names, option=option, what=what)
            matched.update(hits)
    return tuple(name for name in names if name in matched)


def quoted(name: str) -> str:
    """A column's name as it is typed in a shell."""
    return shlex.quote(escaped(name))


def listed(items: Sequence[str], most: int = 12) -> str:
    """A list for a message, cut when it is long; no item can pretend to be a line of its own."""
    shown = ", ".join(_short(escaped(item)) for item in items[:most])
    return shown if len(items) <= most else f"{shown}, … ({len(items)} in all)"


def _short(item: str) -> str:
    return item if len(item) <= _LONGEST_SHOWN else item[: _LONGEST_SHOWN - 1] + "…"


def _option(role: str) -> str:
    return "--split-column" if role == "split" else "--" + role.replace("_", "-")


def _require_column(name: str, names: Sequence[str], *, option: str, what: str = "column") -> None:
    if name not in names:
        raise BadUsage(
            f"{option}: there is no {what} '{name}'",
            found=f"{what}s: {listed(names)}",
            hint=nearest_hint(name, names, f"use one of the {what}s"),
        )


def _refuse_two_roles(features: Sequence[str], dropped: Sequence[str], single: dict[str, str | None]) -> None:
    seen: dict[str, str] = {}
    claims = [(name, "--features") for name in features] + [(name, "--drop") for name in dropped]
    claims += [(name, _option(role)) for role, name in single.items() if name is not None]
    for name, option in claims:
        if name in seen:
            raise BadUsage(
                f"column '{name}' has two roles",
                found=f"options: {seen[name]} and {option}",
                hint="a column has one role; take it out of one of the two options",
            )
        seen[name] = option
