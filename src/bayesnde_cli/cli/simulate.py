"""`bayesnde simulate`: rows of a known distribution, with their exact log-density."""

from pathlib import Path
from typing import Annotated

import typer

from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.options import QuietOption
from bayesnde_cli.cli.table_output import FormatOption, OutOption, output_format, table_output
from bayesnde_cli.data.simulators import SIMULATORS, make_simulator, simulate_rows

_NAMES = "\n".join(f"  {name:<16} {family.summary}" for name, family in SIMULATORS.items())


def simulate(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(SIMULATORS)}.")],
    rows: Annotated[int, typer.Option("--rows", "-n", metavar="N", help="How many rows.")] = 1000,
    dim: Annotated[int | None, typer.Option(metavar="P", help="Columns of gmm and linear-gaussian.")] = None,
    latent_dim: Annotated[int | None, typer.Option(metavar="D", help="Latent dimension of linear-gaussian.")] = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Rotate gmm by a fixed orthogonal matrix.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The same seed gives the same rows.")] = 0,
    out: OutOption = Path("-"),
    format: FormatOption = None,
    quiet: QuietOption = False,
) -> None:
    import numpy as np
    import pyarrow as pa

    from bayesnde_cli.data.roles import TRUTH_NAME

    console = Console(quiet=quiet)
    simulator = make_simulator(name, dim=dim, latent_dim=latent_dim, rotate=rotate)
    chunks = simulate_rows(simulator, rows, seed)
    chosen = output_format(out, format)
    schema = pa.schema([(column, pa.float64()) for column in (*simulator.names, TRUTH_NAME)])
    with table_output(out, chosen, schema) as writer, console.progress("simulating", rows, "rows") as advance:
        for x, log_density in chunks:
            columns = [np.ascontiguousarray(column) for column in (*x.T, log_density)]
            writer.write(pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=schema))
            advance(len(x))
    if str(out) != "-":
        console.note(f"{out}: {rows:,} rows, {len(simulator.names)} columns and {TRUTH_NAME}")


simulate.__doc__ = f"""Rows of a distribution whose exact log-density is known, as the column true_log_density.

\b
Names:
{_NAMES}

The first rows of a longer simulation with the same seed are the shorter simulation.

\b
Example:
  bayesnde simulate involute --rows 20000 --out involute.csv
"""
