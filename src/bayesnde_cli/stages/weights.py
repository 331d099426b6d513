"""The networks that a training stage has left: what they look like, and their weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bayesnde_cli.artifacts.arrays import read_arrays
from bayesnde_cli.artifacts.canonical import is_count
from bayesnde_cli.artifacts.layout import RunLayout, repair_hint
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.model.cells import ColumnCells
from bayesnde_cli.model.networks import NetworkSpec, parameter_shapes


class StoredNetworks(NamedTuple):
    """Decoder and encoder, and the arrays of both."""

    decoder: NetworkSpec
    encoder: NetworkSpec
    weights: dict[str, np.ndarray]


def read_networks(layout: RunLayout, stage: str) -> StoredNetworks:
    """The networks of a finished stage; `BadArtifact` if weights and networks do not fit."""
    path = layout.weights_dir(stage) / "model.npz"
    arrays, facts = read_arrays(path)
    specs = {name: _spec(path, name, facts.get(name), n_arrays=len(arrays)) for name in ("decoder", "encoder")}
    shapes = {
        f"{network}/{name}": shape for network, spec in specs.items() for name, shape in parameter_shapes(spec).items()
    }
    for name in sorted(shapes.keys() | arrays.keys()):
        wanted = (np.dtype(np.float32), shapes[name]) if name in shapes else None
        found = (arrays[name].dtype, arrays[name].shape) if name in arrays else None
        if found != wanted:
            raise _damaged(path, f"{name}: {_kind(found)}, expected {_kind(wanted)}")
    return StoredNetworks(**specs, weights=arrays)


def _spec(path: Path, network: str, stored: Any, *, n_arrays: int) -> NetworkSpec:
    try:
        given = {"cells": (), **stored}  # older networks know no cells
        given |= {"heads": tuple(given["heads"]), "cells": tuple(map(_cells, given["cells"]))}
        spec = NetworkSpec(**given)
        spec = spec if spec.image is None else replace(spec, image=tuple(spec.image))  # type: ignore[arg-type]
        sizes = (spec.n_in, spec.n_out, spec.n_classes, spec.width, spec.depth, spec.levels, *(spec.image or ()))
        # A layer has two arrays at least: whoever says more layers than that would have us count them.
        is_sound = all(is_count(size) for size in sizes) and spec.depth <= n_arrays
        is_sound = is_sound and all(isinstance(head, str) for head in spec.heads) and isinstance(spec.class_maps, bool)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"{network} is {stored!r}: {error}") from error
    if not is_sound:
        raise _damaged(path, f"{network} is {stored!r}")
    return spec


def _cells(stored: Any) -> ColumnCells:
    numbers = [*stored["lower"], *stored["upper"], stored["width"], stored["step"]]
    if not all(isinstance(number, float | int) and not isinstance(number, bool) for number in numbers):
        raise ValueError("cells that are no numbers")
    return ColumnCells(tuple(stored["lower"]), tuple(stored["upper"]), stored["width"], stored["step"])


def _kind(found: tuple[np.dtype, tuple[int, ...]] | None) -> str:
    return "none" if found is None else f"{found[0]} {found[1]}"


def _damaged(path: Path, found: str) -> BadArtifact:
    return BadArtifact(f"{path} is damaged", found=found, hint=repair_hint(path))
