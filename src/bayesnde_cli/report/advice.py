"""What to do about densities that cannot be trusted, and what to do with those that can: exact commands."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayesnde_cli.report.check import Cause, Level
from bayesnde_cli.report.options import assignments, options
from bayesnde_cli.report.report_data import ReportData, Subject, Training
from bayesnde_cli.report.trust import Trust

_SPIKES = (
    "A value that recurs is a rounding, a limit or a category in disguise. Leave such a column out with --drop, or say "
    "--type COLUMN=categorical when the table is prepared."
)
_ESTIMATES = "Keep to the rows whose verdict is reliable, or look longer for what chains have missed:"
_PRECISION = (
    "Rows whose only fault is an error above target are sound but less exact than wanted. Mind their error (mc_se), or "
    "spend more on them:"
)
_MORE_CHAINS = {"chains": 8, "warm_up": 400, "draws": 400}
_MORE_DRAWS = {"draws": 400, "proposal_draws": 20_000}
# What sets how long a training stage may take.
_LENGTH = ("epochs", "steps")
# What no command mends.
_WORDS = {
    Cause.OUTLIERS: "A low density says that a row is rare, not that it is wrong. To find rows like the labelled "
    "outliers, take the estimator that finds them best; the table of outliers below has them all.",
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
        again = "--restart" if data.metrics else ""
        found.append(Advice("Have the model compared with others:", (_command("evaluate", subject, again),)))
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
        found.append(Advice(_ESTIMATES, _scoring(data, _MORE_CHAINS)))
    if Cause.PRECISION in causes:
        found.append(Advice(_PRECISION, _scoring(data, _MORE_DRAWS)))
    found += [Advice(text) for cause, text in _WORDS.items() if cause in causes]
    if trust.level is not Level.POOR:
        found.append(_uses(data))
    return found


def _better_fit(data: ReportData, *, is_overfit: bool) -> Advice:
    """Another training, by what may have gone wrong."""
    if data.fast:
        brief = {stage: dict.fromkeys(names) for stage, names in data.fast.items()}
        return Advice("The model was trained with the preset fast, for a first look. Train it fully:",
                      _training(data, **brief))  # fmt: skip
    if any(name in data.chosen.get(stage, {}) for stage in ("warmstart", "refine") for name in _LENGTH):
        usual = dict.fromkeys(_LENGTH)
        return Advice("The model was trained for a set number of epochs or steps. Train it as long as is usual:",
                      _training(data, usual, usual))  # fmt: skip
    if is_overfit:
        return _smaller_model(data)
    last = data.training[-1] if data.training else None
    if last is not None and last.n_epochs and _was_gaining(last):
        return Advice("The model was still gaining when training ended. Train it longer:",
                      _training(data, refine={"epochs": 2 * last.n_epochs}))  # fmt: skip
    return Advice("A larger model may see more of the shape:", _training(data, {"width": 2 * _width(data)}))


def _smaller_model(data: ReportData) -> Advice:
    held_back = {"weight_decay": 0.3}
    least = 4 if data.images else 16
    return Advice("A smaller model, held back a little, learns less by heart:",
                  _training(data, {"width": max(least, _width(data) // 2), **held_back}, held_back))  # fmt: skip


def _width(data: ReportData) -> int:
    return int((data.settings.get("warmstart") or {}).get("width") or 256)


def _was_gaining(training: Training) -> bool:
    return training.chosen == len(training.log_density) - 1


def _training(
    data: ReportData, warmstart: Mapping[str, Any] | None = None, refine: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """Both stages again as they were, but for these settings, and all that follows."""
    changed = {"warmstart": warmstart or {}, "refine": refine or {}}
    stages = [_again(stage, data, settings) for stage, settings in changed.items()]
    return (*stages, *_scoring(data))


def _scoring(data: ReportData, more: Mapping[str, int] | None = None) -> tuple[str, ...]:
    """The rows scored again, with no less than so much effort."""
    before = data.chosen.get("density", {})
    more = {name: max(value, before.get(name, 0)) for name, value in (more or {}).items()}
    return _again("density", data, more), _command("evaluate", data.subject, "--restart")


def _again(stage: str, data: ReportData, changed: Mapping[str, Any]) -> str:
    """A stage with the settings that were chosen for it, but for some."""
    settings = {**data.chosen.get(stage, {}), **changed}
    return _command(stage, data.subject, " ".join(["--restart", *options(settings)]))


def _without_linear(data: ReportData) -> str:
    """The whole way again, with all that was chosen."""
    linear = [name for name, _ in data.doubtful.linear]
    chosen = {stage: dict(settings) for stage, settings in data.chosen.items()}
    prepare = chosen.pop("prepare", {})
    features = [name for item in prepare.get("features", ()) for name in _named(item, linear)]
    prepare["features"] = [name for name in features if name not in linear]
    prepare["drop"] = [*prepare.get("drop", ()), *(name for name in linear if name not in features)]
    for rules in {"type", "dequantize"} & prepare.keys():  # COLUMN=…
        prepare[rules] = [rule for rule in prepare[rules] if rule.rpartition("=")[0] not in linear]
    typed = options(prepare)
    typed += [word for stage, settings in chosen.items() for word in assignments(stage, settings)]
    subject = data.subject
    return " ".join(filter(None, ["bayesnde fit", subject.table_argument, *typed, subject.run_option, "--restart"]))


def _named(item: str, names: list[str]) -> list[str]:
    """The names of a list `a,b` that holds one of these; any other item as it is."""
    pieces = [piece.strip() for piece in item.split(",")]
    return pieces if set(pieces) & set(names) else [item]


def _uses(data: ReportData) -> Advice:
    run = data.subject.run_option
    parts = [("density", "new.csv"), ("outliers", "--top 20"), ("sample", "1000")]
    if data.images:
        number = "10 --condition all" if data.subject.classes else "100"
        parts = [("density", "new.npz"), ("outliers", "--top 20"), ("sample", f"{number} --out sheet.png")]
    commands = tuple(" ".join(filter(None, ["bayesnde", name, rest, run])) for name, rest in parts)
    return Advice("What these densities are good for: scoring new rows, finding odd ones, making more.", commands)


def _command(stage: str, subject: Subject, options: str = "") -> str:
    """A stage on this data set, as it is typed."""
    data = subject.data_argument if stage in ("density", "evaluate") else ""
    return " ".join(filter(None, ["bayesnde", stage, data, subject.run_option, options]))
