"""Commands that need no settings of their own: `simulate`, `status`, `reproduce`."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bayesnde_cli.cli.console import output_format, with_progress, write_rows
from bayesnde_cli.cli.options import FORMAT, OUT, Call, argument, flag, option, with_options
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.tables.simulator_catalogue import SIMULATORS, make_simulator, simulate_rows

if TYPE_CHECKING:
    from bayesnde_cli.runs.blocks import Shard

_SIMULATOR_LIST = "\n".join(f"  {name:<16} {family.summary}" for name, family in SIMULATORS.items())
_DATA_DIR = "BAYESNDE_DATA"
_PAGE = Path("docs/results.md")


@with_options("quiet")
def simulate(
    call: Call,
    name: str = argument("NAME", f"Name of the distribution: {', '.join(SIMULATORS)}."),
    rows: int = option("N", "Number of rows.", "--rows", "-n", default=1000),
    dim: int | None = option("P", "Number of columns of gmm and linear-gaussian."),
    latent_dim: int | None = option("D", "Latent dimension of linear-gaussian."),
    rotate: bool = flag("Rotate gmm by a fixed orthogonal matrix.", "--rotate"),
    seed: int = option("N", "Seed of the rows.", min=0, default=0),
    out: Path = OUT,
    format: str | None = FORMAT,
) -> None:
    import numpy as np
    import pyarrow as pa

    from bayesnde_cli.tables.columns import TRUTH_NAME

    simulator = make_simulator(name, dim=dim, latent_dim=latent_dim, rotate=rotate)
    chunks = simulate_rows(simulator, rows, seed)
    chosen = output_format(out, format)
    schema = pa.schema([(column, pa.float64()) for column in (*simulator.names, TRUTH_NAME)])
    batches = (
        pa.RecordBatch.from_arrays(
            [pa.array(np.ascontiguousarray(part)) for part in (*x.T, log_density)], schema=schema
        )
        for x, log_density in chunks
    )
    with call.console.progress("simulating", rows, "rows") as advance:
        write_rows(out, chosen, schema, with_progress(batches, advance))
    if str(out) != "-":
        call.console.note(f"{out}: {rows:,} rows, {len(simulator.names)} columns and {TRUTH_NAME}")


simulate.__doc__ = f"""Simulate rows of a known distribution, with their exact log-density in a column.

\b
Names:
{_SIMULATOR_LIST}

A shorter simulation with the same seed is the beginning of a longer one.

\b
Example:
  bayesnde simulate involute --rows 20000 --out involute.csv
"""


@with_options("run", "json")
def status(call: Call, verify: bool = flag("Read every output and check its hash.", "--verify")) -> None:
    """Show the state of every stage of a run, and the next command.

    A stage is missing, queued, running, interrupted, done, stale or damaged. The exit code is 3 if nothing is prepared,
    or if something is stale or damaged.

    \b
    Example:
      bayesnde status
      bayesnde status --run bank --json
    """
    from bayesnde_cli.stages.status import run_status

    found = run_status(call.layout, is_verifying=verify)
    if call.json:
        call.finish(found)
    else:
        call.console.result(f"run directory: {found.run}")
        rows = [stage.table_row() for stage in found.stages]
        call.console.result_table(["stage", "state", "blocks", "shards", "detail"], rows)
        for array in found.arrays:
            call.console.result(str(array))
        call.console.result(f"next: {found.next_command or 'nothing, all stages are done'}")
    raise typer.Exit(0 if found.is_sound else 3)


@with_options("assignments", "run", "restart", "json", "quiet")
def reproduce(
    call: Call,
    context: typer.Context,
    name: str | None = argument("NAME", "Name of the experiment.", None),
    list_: bool = flag("List all experiments.", "--list"),
    collect: bool = flag("Collect all results in one page of tables and pictures.", "--collect"),
    dim: int | None = option("P", "Number of columns of gmm: 2, 5, 10, 15, 20 or 25."),
    recipe: list[str] | None = option("NAME", "Recipe to run, such as default or paper, or all; repeatable."),
    method: list[str] | None = option("NAME", "Competitor to run, or all; repeatable."),
    seeds: str | None = option("I,J,K", "Seeds of the models."),
    test_rows: int | None = option("N", "Largest number of test rows. [default: see --list]", min=1),
    train_rows: int | None = option(
        "N", "Largest number of training rows of our recipes, as --set prepare.train_rows=N.", min=1
    ),
    data_dir: Path | None = option("DIR", f"Folder with the raw files. [default: ${_DATA_DIR}, else ./data]"),
    download: bool = flag("Download raw files that are missing.", "--download"),
    shard: str | None = option("I/N", "Run only the arms of this shard."),
    out: Path | None = option(
        "FILE", f"File that --collect writes; JSON, maps and pictures go next to it. [default: {_PAGE}]"
    ),
) -> None:
    """Rerun the paper's experiments by name and compare with the paper and with competitors.

    All methods use the same rows. An arm is one recipe or competitor with one seed, in a folder of the run directory
    with its result.json. Run it again to resume; finished arms are skipped. --set changes a setting of our recipes, and
    the result records it.

    \b
    Example:
      bayesnde reproduce --list
      bayesnde reproduce involute
      bayesnde reproduce gmm --dim 15 --method nsf --method gaussian_mixture
      bayesnde reproduce mnist --train-rows 20000 --test-rows 1000
      bayesnde reproduce bank --recipe all --method all --shard 3/8 --data-dir raw
      bayesnde reproduce --collect
    """
    from bayesnde_cli.reproduce.experiments import Listing, Request, find_experiment

    if list_:
        _allow_only(context, "--list", "--run", "--json", "--quiet")
        call.finish(Listing())
        return
    root = call.layout.root
    if collect:
        _allow_only(context, "--collect", "--run", "--out", "--json", "--quiet")
        from bayesnde_cli.reproduce.results_page import collect_results

        call.finish(collect_results(root, out or _PAGE))
        return
    if name is None:
        hint = "see `bayesnde reproduce --list`"
        raise BadUsage("no experiment is named", found="neither NAME nor --list nor --collect", hint=hint)
    if out is not None:
        raise BadUsage(f"--out is for --collect, not for {name}", found=f"--out {out}", hint="leave --out out")
    assignments = [*(call.assignments or ()), *([] if train_rows is None else [f"prepare.train_rows={train_rows}"])]
    request = Request(
        recipes=tuple(recipe or ()),
        methods=tuple(method or ()),
        seeds=_parse_seeds(seeds),
        test_rows=test_rows,
        settings=tuple(assignments),
        data_dir=data_dir or Path(os.environ.get(_DATA_DIR) or "data"),
        is_download=download,
        shard=_parse_shard(shard),
        is_restart=call.restart,
    )
    experiment = find_experiment(name, dim)
    from bayesnde_cli.reproduce.arms import run_reproduce

    call.finish(run_reproduce(root, experiment, request, call.console))


def _allow_only(context: Any, question: str, *allowed: str) -> None:
    """Refuse arguments that would be ignored."""
    given = [
        context.params[parameter.name] if parameter.param_type_name == "argument" else parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name).name == "COMMANDLINE"
    ]
    others = [name for name in given if name not in (question, *allowed)]
    if others:
        raise BadUsage(
            f"{question} goes with {', '.join(allowed[:-1])} and {allowed[-1]} only",
            found=f"also given: {', '.join(others)}",
            hint=f"leave that out, or leave {question} out",
        )


def _parse_seeds(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"\d{1,10}", word, re.ASCII) and int(word) < 2**32 for word in words):
        raise BadUsage(
            "--seeds must be comma-separated integers from 0 to 4294967295",
            found=f"--seeds {text}",
            hint="for instance --seeds 0,3,7",
        )
    return tuple(map(int, words))


def _parse_shard(text: str | None) -> "Shard | None":
    from bayesnde_cli.runs.blocks import Shard, parse_shard

    if text is None:
        return None
    found = parse_shard(text, os.environ)
    if isinstance(found, Shard):
        return found
    # Nothing records how an array divided the arms: a part of it would divide them differently.
    if found.min not in (0, 1) or found.max - found.min + 1 != found.count:
        raise BadUsage(
            "--shard auto needs a whole array that starts at 0 or 1",
            found=f"this one has {found.count} tasks, from {found.min} to {found.max}",
            hint="write `--shard 3/8` for the third of eight shards",
        )
    return Shard(found.id - found.min + 1, found.count)
