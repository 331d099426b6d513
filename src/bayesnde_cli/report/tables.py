"""Tables of the page; a wide one scrolls in its own box."""

from collections.abc import Iterable, Sequence

from bayesnde_cli.report.markup import Markup, tag


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[int] = (0,), strong: int = -1
) -> Markup:
    """A table of numbers; the columns at the positions `words` are words, and the row at `strong` stands out."""
    kinds = ["words" if index in words else "number" for index in range(len(header))]
    head = tag("tr", *(tag("th", name, class_=kind) for name, kind in zip(header, kinds, strict=True)))
    body = [
        tag("tr", *(tag("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)),
            class_="strong" if place == strong else "plain")
        for place, row in enumerate(rows)
    ]  # fmt: skip
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")


def pairs(entries: Iterable[tuple[str, str]]) -> Markup:
    """Names with their values, one below the other."""
    rows = [tag("tr", tag("th", name), tag("td", value)) for name, value in entries]
    return tag("div", tag("table", tag("tbody", *rows), class_="pairs"), class_="scroll")
