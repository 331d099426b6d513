"""`bayesnde reproduce`: the paper's experiments by name."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import AssignmentsOption, JsonOption, QuietOption, RunOption
from bayesnde_cli.cli.run_directory import run_directory
from bayesnde_cli.errors import BadUsage

if TYPE_CHECKING:
    from bayesnde_cli.artifacts.shards import Shard

_DATA_DIR = "BAYESNDE_DATA"
_PAGE = Path("docs/results.md")


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The experiment.", show_default=False)] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show all experiments.")] = False,
    collect: Annotated[
        bool, typer.Option("--collect", help="Bring all results together in a page of tables and pictures.")
    ] = False,
    dim: Annotated[int | None, typer.Option(metavar="P", help="Columns of gmm: 2, 5, 10, 15, 20 or 25.")] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="default, paper or another of ours, or all; repeatable.", show_default=False),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A competitor, or all; repeatable.", show_default=False),
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="I,J,K", help="Seeds of the models.", show_default=False)] = None,
    test_rows: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Test rows at most. [default: see --list]", show_default=False),
    ] = None,
    train_rows: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Training rows of our recipes at most: --set prepare.train_rows=N.",
            show_default=False,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help=f"Where the raw files are. [default: ${_DATA_DIR}, else ./data]", show_default=False
        ),
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch raw files that are not there.")] = False,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Only the arms of this shard.", show_default=False)
    ] = None,
    assignments: AssignmentsOption = None,
    run: RunOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help=f"Where --collect writes; beside it, FILE's name as .json, maps and pictures. [default: {_PAGE}]",
            show_default=False,
        ),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Replace arms that were run otherwise.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """The paper's experiments by name: our figure beside the paper's and beside every competitor's.

    All methods have the same rows. An arm is one recipe or competitor with one seed; it has a folder in the run
    directory, with its result.json, and goes on where it was stopped. --set changes a setting of our recipes, and the
    result says so.

    \b
    Example:
      bayesnde reproduce --list
      bayesnde reproduce involute
      bayesnde reproduce gmm --dim 15 --method nsf --method gaussian_mixture
      bayesnde reproduce mnist --train-rows 20000 --test-rows 1000
      bayesnde reproduce bank --recipe all --method all --shard 3/8 --data-dir raw
      bayesnde reproduce --collect
    """
    from bayesnde_cli.stages.reproduce import Asked, run_reproduce
    from bayesnde_cli.stages.reproduce.experiments import experiment_named

    console = Console(quiet=quiet)
    of_arms: dict[str, object] = {
        name or "": name, "--dim": dim, "--recipe": recipe, "--method": method, "--seeds": seeds,
        "--test-rows": test_rows, "--train-rows": train_rows, "--data-dir": data_dir, "--download": download or None,
        "--shard": shard, "--set": assignments, "--restart": restart or None,
    }  # fmt: skip
    if list_:
        others: dict[str, object] = {"--collect": collect or None, "--out": out}
        _refuse_beside("--list", "--run, --json and -q", of_arms | others)
        from bayesnde_cli.stages.reproduce.listing import Listing

        console.finish(Listing(), is_json=json)
        return
    root = run_directory(run)
    if collect:
        _refuse_beside("--collect", "--run, --out, --json and -q", of_arms)
        from bayesnde_cli.stages.reproduce.collecting import collect_results

        console.finish(collect_results(root, out or _PAGE), is_json=json)
        return
    if name is None:
        raise BadUsage(
            "no experiment is named", found="neither NAME nor --list nor --collect",
            hint="see `bayesnde reproduce --list`",
        )  # fmt: skip
    if out is not None:
        raise BadUsage(f"--out is for --collect, not for {name}", found=f"--out {out}", hint="leave --out out")
    asked = Asked(
        recipes=tuple(recipe or ()),
        methods=tuple(method or ()),
        seeds=_seeds(seeds),
        test_rows=test_rows,
        settings=(*(assignments or ()), *([] if train_rows is None else [f"prepare.train_rows={train_rows}"])),
        data_dir=data_dir or Path(os.environ.get(_DATA_DIR) or "data"),
        is_download=download,
        shard=_shard(shard),
        is_restart=restart,
    )
    console.finish(run_reproduce(root, experiment_named(name, dim), asked, console), is_json=json)


def _refuse_beside(question: str, allowed: str, others: Mapping[str, object]) -> None:
    """Refuse what would be ignored: an experiment, or what is asked of its arms."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise BadUsage(
            f"{question} goes with {allowed} only",
            found=f"also given: {', '.join(given)}",
            hint=f"leave that out, or leave {question} out",
        )


def _seeds(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"\d{1,10}", word, re.ASCII) and int(word) < 2**32 for word in words):
        raise BadUsage(
            f"--seeds {text} is no list of seeds", found="whole numbers from 0 to 4294967295, with commas between them",
            hint="for instance --seeds 0,3,7",
        )  # fmt: skip
    return tuple(map(int, words))


def _shard(text: str | None) -> "Shard | None":
    from bayesnde_cli.artifacts.shards import Shard, parse_shard

    if text is None:
        return None
    found = parse_shard(text, os.environ)
    if isinstance(found, Shard):
        return found
    # Nothing remembers how an array divided the arms: a part of it would divide them otherwise.
    if found.min not in (0, 1) or found.max - found.min + 1 != found.count:
        raise BadUsage(
            "--shard auto needs a whole array that starts at 0 or 1",
            found=f"this one has {found.count} tasks, from {found.min} to {found.max}",
            hint="write `--shard 3/8` for the third of eight shards",
        )
    return Shard(found.id - found.min + 1, found.count)
