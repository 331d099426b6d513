"""Markup: text is escaped, markup is not, and what comes out is XML."""

from xml.etree import ElementTree

from bayesnde_cli.report.markup import Markup, joined, tag


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "a < b & c", tag("b", "d")) == "<p>a &lt; b &amp; c<b>d</b></p>"
    assert joined(["<i>", Markup("<i>")]) == "&lt;i&gt;<i>"


def test_attributes_are_escaped_named_as_in_html_and_rounded() -> None:
    assert tag("p", class_='"x"', font_size=1.23456) == '<p class="&quot;x&quot;" font-size="1.23"></p>'
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8"/>'


def test_control_characters_are_spelled_out() -> None:
    text = tag("p", "a\x00b\x1bc")
    assert text == "<p>a\\x00b\\x1bc</p>"
    ElementTree.fromstring(text)
