"""Does the table have a density to be learnt? Its size, values that recur, columns that others determine."""

from bayesnde_cli.report.check import Cause, Check, Level
from bayesnde_cli.report.numerals import share
from bayesnde_cli.report.report_data import ReportData

# Fewer training rows than these leave the shape between them to the model; fewer scored ones say little of the rest.
_LEAST_TRAIN, _TRAIN_PER_FEATURE, _LEAST_SCORED = 200, 20, 50


def size(data: ReportData) -> Check | None:
    """Whether there are rows enough to learn from, and to judge by."""
    subject = data.subject
    if not subject.n_train or not subject.n_features:
        return None
    # Networks of images have the same weights at every place: more pixels need no more images.
    wanted = _LEAST_TRAIN if data.images else max(_LEAST_TRAIN, _TRAIN_PER_FEATURE * subject.n_features)
    smallest = min(subject.classes, key=lambda name: subject.classes[name], default=None)
    n_train = subject.n_train if smallest is None else subject.classes[smallest]
    classes = f" in {_counted(len(subject.classes), 'class', 'classes')} (fewest: {n_train:,} of {smallest})"
    text = f"{_counted(subject.n_train, 'training row')}{classes if smallest is not None else ''} for "
    text += f"{_counted(subject.n_features, 'feature')}, {_counted(subject.n_rows, 'row')} scored"
    n_whole = (data.metrics.get("rows") or {}).get("n_in_mean", subject.n_rows)
    if n_whole < subject.n_rows:
        text += f", {n_whole:,} of them complete and with a finite log-density"
    if n_train < wanted:
        text += f": few; {wanted:,}{' a class' if subject.classes else ''} would leave less to the model."
        return Check("Size", Level.FAIR, text, Cause.FEW)
    if n_whole < _LEAST_SCORED:
        return Check("Size", Level.FAIR, f"{text}: the means on this page are rough.", Cause.FEW)
    return Check("Size", Level.GOOD, f"{text}.")


def spikes(data: ReportData) -> Check | None:
    """Continuous columns in which one value recurs."""
    found = sorted(data.doubtful.spikes, key=lambda item: -item[1])
    if not found:
        return None
    named = _some([f"{name} ({share(part, 1.0)})" for name, part in found])
    text = f"In {_counted(len(found), 'continuous column')} one value recurs in many rows: {named}. A density is not "
    text += "defined there: how high it is depends on the scaling. Compare rows with each other, not with other models."
    return Check("Spikes", Level.FAIR, text, Cause.SPIKES)


def linear(data: ReportData) -> Check | None:
    """Columns that are linear functions of others."""
    found = data.doubtful.linear
    if not found:
        return None
    named = _some([f"{name} (of {', '.join(others[:4])})" for name, others in found])
    text = f"{_counted(len(found), 'column')} {'is' if len(found) == 1 else 'are'} nearly a linear function of "
    text += f"others: {named}. The rows lie on a plane, where densities grow without bound."
    return Check("Linear columns", Level.FAIR, text, Cause.LINEAR)


def _some(items: list[str], most: int = 4) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


def _counted(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
