"""HTML and SVG from nested calls: text is escaped unless it is markup already, so no column name can become a tag."""

from collections.abc import Iterable
from html import escape

from bayesnde_cli.errors import escaped

# A blank that a line is not broken at.
NO_BREAK = "\u00a0"
# Elements of HTML that have no end tag.
_VOID = {"meta", "br", "img"}


class Markup(str):
    """Text that is markup: it is not escaped again."""


def tag(element: str, *children: str, **attributes: str | float) -> Markup:
    """One element. `font_size` becomes `font-size`, `class_` becomes `class`; numbers are rounded to 0.01.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    written = "".join(f' {_name(name)}="{_value(value)}"' for name, value in attributes.items())
    if element in _VOID:
        return Markup(f"<{element}{written}/>")
    return Markup(f"<{element}{written}>{joined(children)}</{element}>")


def joined(parts: Iterable[str]) -> Markup:
    """Parts one after the other, each escaped unless it is markup."""
    return Markup("".join(part if isinstance(part, Markup) else _text(part) for part in parts))


def _text(text: str) -> str:
    # Control characters are spelled out: XML has no way to write most of them.
    return escape(escaped(text, keep="\n" + NO_BREAK), quote=True)


def _name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return _text(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
