"""Can these densities be trusted? What to do if not."""

from bayesnde_cli.report.advice import Advice, advise
from bayesnde_cli.report.check import Check, Level
from bayesnde_cli.report.markup import Markup, tag
from bayesnde_cli.report.report_data import ReportData
from bayesnde_cli.report.trust import Trust, judge

_ANSWERS = {
    Level.GOOD: ("Yes.", "These densities can be trusted."),
    Level.FAIR: ("Mostly.", "These densities can be used, with the care named below."),
    Level.POOR: ("No.", "Do not rely on these densities yet."),
}
_CLASSES = {Level.GOOD: "good", Level.FAIR: "fair", Level.POOR: "poor"}
# A sign and a word: the colour alone says nothing to some readers, and nothing in print.
_SIGNS = {Level.GOOD: ("✓", "good"), Level.FAIR: ("!", "care"), Level.POOR: ("✗", "problem")}


def verdict(data: ReportData) -> Markup:
    """The answer, the checks that it rests on, and what to do."""
    trust = judge(data)
    word, sentence = _ANSWERS[trust.level]
    return tag(
        "section",
        tag("h2", "Can these densities be trusted?"),
        tag("p", tag("strong", word), f" {sentence}", class_="answer"),
        tag("ul", *map(_check, _worst_first(trust)), class_="checks"),
        _what_to_do(advise(trust, data)),
        id="verdict",
        class_=f"verdict {_CLASSES[trust.level]}",
    )


def _worst_first(trust: Trust) -> list[Check]:
    return sorted(trust.checks, key=lambda check: -check.level)


def _check(check: Check) -> Markup:
    sign, word = _SIGNS[check.level]
    mark = tag("span", sign, class_="mark", title=word)
    words = tag("span", tag("b", f"{check.subject}: "), check.text)
    return tag("li", mark, words, class_=_CLASSES[check.level])


def _what_to_do(advice: list[Advice]) -> Markup:
    parts = []
    for item in advice:
        parts.append(tag("p", item.text))
        if item.commands:
            parts.append(tag("pre", tag("code", "\n".join(item.commands))))
    return tag("div", tag("h3", "What to do"), *parts) if parts else Markup("")
