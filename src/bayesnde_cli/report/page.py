"""The page: sections in order, in one file that needs nothing else."""

from importlib.resources import files

from bayesnde_cli.report.markup import Markup, tag
from bayesnde_cli.report.report_data import ReportData, Subject
from bayesnde_cli.report.sections.densities import densities
from bayesnde_cli.report.sections.errors import errors
from bayesnde_cli.report.sections.images import ends, images
from bayesnde_cli.report.sections.lowest import lowest
from bayesnde_cli.report.sections.metrics import metrics
from bayesnde_cli.report.sections.provenance import provenance
from bayesnde_cli.report.sections.shape import density_map, marginals, pairs
from bayesnde_cli.report.sections.training import training
from bayesnde_cli.report.sections.verdict import verdict

_SECTIONS = (
    verdict, metrics, training, densities, density_map, pairs, marginals, images, ends, errors, lowest, provenance,
)  # fmt: skip


def render(data: ReportData) -> str:
    """The whole page as text. It is well-formed XML as well, so any tool can read it."""
    subject = data.subject
    title = f"{subject.title}: densities of {subject.set_name}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"bayesnde {data.versions.get('bayesnde', '')}".strip()),
        tag("title", title),
        tag("style", Markup(_style())),
    )
    parts = [part for part in (make(data) for make in _SECTIONS) if part is not None]
    body = tag("body", tag("main", _header(data), *parts, _footer(subject)))
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _header(data: ReportData) -> Markup:
    return tag(
        "header",
        tag("p", "bayesnde report", class_="kind"),
        tag("h1", data.subject.title),
        tag("p", _summary(data), class_="note"),
    )


def _summary(data: ReportData) -> str:
    """The size of the task in one line."""
    subject = data.subject
    columns = f"images of {data.images.size}" if data.images else f"{subject.n_features:,} features"
    parts = [f"{subject.n_rows:,} rows scored ({subject.set_name})", columns]
    if subject.n_train:
        parts.append(f"{subject.n_train:,} training rows")
    if subject.classes:
        parts.append(f"{len(subject.classes)} classes")
    return ", ".join(parts)


def _footer(subject: Subject) -> Markup:
    return tag("footer", tag("p", f"Made by bayesnde {subject.version}."))


def _style() -> str:
    return (files("bayesnde_cli.report") / "style.css").read_text("utf-8")
