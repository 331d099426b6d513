"""What the page was made from: settings, files, versions."""

from typing import Any

from bayesnde_cli.report.blocks import folded, section
from bayesnde_cli.report.markup import Markup, tag
from bayesnde_cli.report.report_data import ReportData
from bayesnde_cli.report.tables import pairs


def provenance(data: ReportData) -> Markup | None:
    """Facts of the run, with details to be opened."""
    parts = [pairs(data.subject.facts)] if data.subject.facts else []
    parts += [
        folded(f"Settings of {stage}", pairs((name, _word(value)) for name, value in settings.items()))
        for stage, settings in data.settings.items()
    ]
    if data.fingerprints:
        files = [(name, tag("code", digest)) for name, digest in data.fingerprints]
        parts.append(folded("Fingerprints (SHA-256)", pairs(files)))
    if data.versions:
        parts.append(folded("Versions", pairs(data.versions.items())))
    return section("provenance", "The run: settings and fingerprints", *parts) if parts else None


def _word(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
