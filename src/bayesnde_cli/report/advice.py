"""What to do about densities that cannot be trusted, and what to do with those that can: exact commands."""

import shlex
from dataclasses import dataclass

from bayesnde_cli.report.check import Cause, Level
from bayesnde_cli.report.report_data import ReportData, Subject, Training
from bayesnde_cli.report.trust import Trust

_SPIKES = (
    "A value that recurs is a rounding, a limit or a category in disguise. Leave such a column out with --drop, or say "
    "--type COLUMN=categorical when the table is prepared."
)
_ESTIMATES = "Keep to the rows whose verdict is reliable, or look longer for what chains have missed:"
_PRECISION = "The estimates are sound but less exact than wanted. Mind their error (mc_se), or spend more on them:"
# What no command mends.
_WORDS = {
    Cause.OTHER_ROWS: "These rows are unlike those of training. If they should not be, compare their columns below.",
    Cause.FEW: "More rows help more than any setting. Until then, trust the order of densities in the middle of the "
    "data before their values, and both before those at the margins.",
}


@dataclass(frozen=True)
class Advice:
    """A reason, and what to type, one command a line."""

    text: str
    commands: tuple[str, ...] = ()


def advise(trust: Trust, data: ReportData) -> list[Advice]:
    """What to do, the most useful first."""
    causes, subject, found = trust.causes, data.subject, []
    if Cause.UNKNOWN in causes:
        found.append(Advice("Have the model compared with others:", (_command("evaluate", subject),)))
    # What concerns the table comes first: all that follows would be done again.
    if Cause.LINEAR in causes:
        found.append(Advice("Leave out what other columns say already:", (_without_linear(data),)))
    if Cause.SPIKES in causes:
        found.append(Advice(_SPIKES))
    if Cause.FIT in causes:
        found.append(_better_fit(data, is_overfit=Cause.OVERFIT in causes))
    elif Cause.OVERFIT in causes:
        found.append(_smaller_model(data))
    if Cause.ESTIMATES in causes:
        found.append(Advice(_ESTIMATES, _scoring(subject, "--restart --chains 8 --warm-up 400 --draws 400")))
    if Cause.PRECISION in causes:
        found.append(Advice(_PRECISION, _scoring(subject, "--restart --draws 400 --proposal-draws 20000")))
    found += [Advice(text) for cause, text in _WORDS.items() if cause in causes]
    if trust.level is not Level.POOR:
        found.append(_uses(subject))
    return found


def _better_fit(data: ReportData, *, is_overfit: bool) -> Advice:
    """Another training, by what may have gone wrong."""
    asked = (data.settings.get("warmstart") or {}).get("epochs") is not None
    if asked:
        return Advice("The model was trained for a set number of epochs, as the preset fast does. Train it fully:",
                      _training(data.subject))  # fmt: skip
    if is_overfit:
        return _smaller_model(data)
    last = data.training[-1] if data.training else None
    if last is not None and last.n_epochs and _was_gaining(last):
        options = f"--epochs {2 * last.n_epochs}"
        return Advice("The model was still gaining when training ended. Train it longer:",
                      _training(data.subject, refine=options))  # fmt: skip
    width = 2 * int((data.settings.get("warmstart") or {}).get("width") or 256)
    return Advice("A larger model may see more of the shape:", _training(data.subject, f"--width {width}"))


def _smaller_model(data: ReportData) -> Advice:
    width = max(16, int((data.settings.get("warmstart") or {}).get("width") or 256) // 2)
    return Advice("A smaller model, held back a little, learns less by heart:",
                  _training(data.subject, f"--width {width} --weight-decay 0.01", "--weight-decay 0.01"))  # fmt: skip


def _was_gaining(training: Training) -> bool:
    return training.chosen == len(training.log_density) - 1


def _training(subject: Subject, warmstart: str = "", refine: str = "") -> tuple[str, ...]:
    options = {"warmstart": warmstart, "refine": refine}
    stages = [_command(name, subject, f"--restart {more}".strip()) for name, more in options.items()]
    return (*stages, *_scoring(subject, "--restart"))


def _scoring(subject: Subject, options: str) -> tuple[str, ...]:
    return _command("density", subject, options), _command("evaluate", subject, "--restart")


def _without_linear(data: ReportData) -> str:
    """The whole way again, with the roles that columns had."""
    asked = data.settings.get("prepare") or {}
    roles = {"--condition": asked.get("condition"), "--outlier-label": asked.get("outlier_label"),
             "--truth": asked.get("truth"), "--id": asked.get("id")}  # fmt: skip
    options = [f"{option} {shlex.quote(name)}" for option, name in roles.items() if name]
    dropped = [*(asked.get("drop") or ()), *(name for name, _ in data.doubtful.linear)]
    options += [f"--drop {shlex.quote(name)}" for name in dropped]
    subject = data.subject
    return " ".join(filter(None, ["bayesnde fit", subject.table_argument, *options, subject.run_option, "--restart"]))


def _uses(subject: Subject) -> Advice:
    run = subject.run_option
    parts = [("density", "new.csv"), ("outliers", "--top 20"), ("sample", "1000")]
    commands = tuple(" ".join(filter(None, ["bayesnde", name, rest, run])) for name, rest in parts)
    return Advice("What these densities are good for: scoring new rows, finding odd ones, making more.", commands)


def _command(stage: str, subject: Subject, options: str = "") -> str:
    """A stage on this data set, as it is typed."""
    data = subject.data_argument if stage in ("density", "evaluate") else ""
    return " ".join(filter(None, ["bayesnde", stage, data, subject.run_option, options]))
