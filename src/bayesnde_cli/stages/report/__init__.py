"""The report of a scored data set: what it is made from is read here, from the run directory; `report` renders it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bayesnde_cli.artifacts.layout import RunLayout

if TYPE_CHECKING:
    from bayesnde_cli.stages.evaluate.model import Model


def report_bytes(layout: RunLayout, set_name: str, metrics: Mapping[str, Any], model: "Model") -> bytes:
    """The page about a scored data set; its figures need not be on disk yet."""
    from bayesnde_cli.report.page import render
    from bayesnde_cli.stages.report.collect import collect

    # A file name may hold bytes that are no UTF-8; Python hands them on as lone surrogates.
    return render(collect(layout, set_name, metrics, model)).encode("utf-8", "backslashreplace")
