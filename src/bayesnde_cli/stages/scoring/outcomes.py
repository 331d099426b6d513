"""What a scoring stage made: a sentence for people, a dictionary for machines."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bayesnde_cli.stages.reporting import counted

# What the manifests of both stages tell.
CHAIN_RESULT: dict[str, type | tuple[type, ...]] = {
    "n_rows": int,
    "divergences": int,
    "rhat_max": (float, int, type(None)),
    "ess_min": (float, int),
    "n_not_finite": int,
    "made_with": dict,
}
DENSITY_RESULT: dict[str, type | tuple[type, ...]] = {
    "n_rows": int,
    "n_reliable": int,
    "mean_log_density": (float, int, type(None)),
    "verdicts": dict,
    "n_not_finite": int,
    "n_incomplete": int,
    "made_with": dict,
}


@dataclass(frozen=True)
class Drawn:
    """What `posterior` made."""

    folder: str
    set_name: str
    is_up_to_date: bool
    n_rows: int
    n_chains: int
    n_draws: int
    divergences: int
    rhat_max: float | None  # of the rows where it is finite
    ess_min: float
    n_not_finite: int = 0  # rows whose R-hat is not
    made_with: Mapping[str, int] = field(default_factory=dict)  # blocks by versions
    export: str | None = None  # the file that all draws were written to

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        rhat = "R-hat not finite" if self.rhat_max is None else f"R-hat up to {self.rhat_max:.3f}"
        if self.n_not_finite and self.rhat_max is not None:
            rhat += f" (not finite for {counted(self.n_not_finite, 'row')})"
        text = (
            f"{self.folder}: {counted(self.n_rows, 'row')}, {counted(self.n_chains, 'chain')} of "
            f"{counted(self.n_draws, 'draw')} each, {rhat}, {counted(self.divergences, 'divergence')}"
        )
        text += f"; draws in {self.export}" if self.export else ""
        return f"{text} (up to date)" if self.is_up_to_date else text


@dataclass(frozen=True)
class Scored:
    """What `density` made. `columns` are those that the user wants to see."""

    file: str
    set_name: str
    is_up_to_date: bool
    n_rows: int
    n_reliable: int
    mean_log_density: float | None  # of the whole rows where it is finite
    verdicts: Mapping[str, int]
    n_not_finite: int = 0  # rows where it is not
    n_incomplete: int = 0  # rows with missing cells
    made_with: Mapping[str, int] = field(default_factory=dict)  # blocks by versions
    columns: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "columns"}

    def __str__(self) -> str:
        text = f"{self.file}: {counted(self.n_rows, 'row')}, {self._mean()}, {self.n_reliable:,} reliable"
        return f"{text} (up to date)" if self.is_up_to_date else text

    def _mean(self) -> str:
        if self.n_incomplete == self.n_rows:
            return "no mean log-density (every row has missing cells)"
        mean = "not finite" if self.mean_log_density is None else f"{self.mean_log_density:.4f}"
        counts = {"with missing cells": self.n_incomplete, "where it is not finite": self.n_not_finite}
        left_out = " and ".join(f"{counted(n, 'row')} {which}" for which, n in counts.items() if n)
        return f"mean log-density {mean} (units of the file" + (f"; without {left_out})" if left_out else ")")


@dataclass(frozen=True)
class ShardDone:
    """What a shard of a scoring stage leaves: its blocks are there."""

    folder: str
    set_name: str
    shard: str
    n_shard_blocks: int
    blocks_done: int
    n_blocks: int
    next_command: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        text = (
            f"{self.folder}: shard {self.shard} done, {counted(self.n_shard_blocks, 'block')}; "
            f"{self.blocks_done:,} of {counted(self.n_blocks, 'block')} there"
        )
        return text if self.blocks_done < self.n_blocks else f"{text}, combine with `{self.next_command}`"
