"""Processes with other versions on one data set: their blocks may differ in the last digits, so they are told apart."""

from collections.abc import Mapping

from bayesnde_cli.artifacts.environment import computing_versions, versions_text
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.plan import Plan
from bayesnde_cli.stages.reporting import Report, counted


def warn_of_other_versions(layout: RunLayout, plan: Plan, report: Report) -> None:
    """Say so if this process computes with other versions than the one that made the plan."""
    ours = computing_versions()
    changed = [name for name in plan.packages if ours.get(name) != plan.packages[name]]
    if changed:
        theirs = versions_text({name: plan.packages[name] for name in changed})
        present = versions_text({name: ours.get(name, "(none)") for name in changed})
        report.warn(
            f"{layout.label(plan.stage, plan.set_name)} was begun with {theirs}, and this process has {present}: "
            "its blocks may differ in their last digits"
        )


def warn_of_mixed_versions(layout: RunLayout, plan: Plan, made_with: Mapping[str, int], report: Report) -> None:
    """Say so if the blocks, which are counted by the versions that they were made with, differ in these."""
    if len(made_with) > 1:
        parts = "; ".join(f"{counted(count, 'block')} with {versions}" for versions, count in made_with.items())
        report.warn(f"{layout.label(plan.stage, plan.set_name)} was made with different versions: {parts}")
