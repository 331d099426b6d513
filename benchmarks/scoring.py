"""What it costs to score rows, against what this machine can multiply; and how wrong the scores of a fitted run are.

    python benchmarks/scoring.py --json scoring.json
    python benchmarks/scoring.py --only 17x8 --budgets paper --seconds 60 --threads 1
    python benchmarks/scoring.py --only --run RUN --rows 64

Speed: the package's own engine draws and scores one block of rows that networks of random weights made up, first try
only. Everything is compiled before, in a first run whose times are not used. HMC and the evaluation of the proposal are
many equal calls of one program each; when `--seconds` are over, those left are counted at the mean time of those made,
and `calls` says how many were made, of how many. `of peak` is as in training.py, by the call of HMC that took least CPU
time. `fitting` includes the decoder at the held-out draws, which is the same compiled program.

Error: test rows of a fitted run, against the mean of two long runs of the engine. A mode that the long runs miss as
well is nobody's error here; oracles are for the tests.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from timing import PEAK_COLUMNS, Clocks, Peak, parser_of, print_cases, write_json

from bayesnde_cli.inference import bridge
from bayesnde_cli.model.backend import load_tensorflow
from bayesnde_cli.rng import derive_seed
from bayesnde_cli.settings.resolve import resolve
from bayesnde_cli.settings.stage_settings import DensitySettings
from bayesnde_cli.stages import loading, scoring_job
from training import SHAPES, n_weights

SEED = 1
# A budget and the preset that has it.
BUDGETS = {"paper": "paper", "default": None}
# Two long runs; metric and starts are the default's.
REFERENCE: dict[str, Any] = {"warm_up": 400, "draws": 1600, "proposal_draws": 40_000, "escalations": 0}
# The bar of the default: this share of the gradient evaluations of the paper's budget, and no larger median error.
MOST_GRADIENTS = 0.2

# The programs of the engine, and the parts of its time that they are.
PROGRAMS = {
    "start": "starts",
    "run_segment": "hmc",
    "fit_jumps": "fitting",
    "fit_proposal": "fitting",
    "log_ratios": "fitting",
    "propose": "proposal",
}
PARTS = ("hmc", "proposal", "starts", "fitting", "bridge", "diagnostics")
# Of --seconds, what the programs get that are called many times.
SHARES = {"hmc": 2 / 3, "proposal": 1 / 3}


# Time.


@dataclass
class Part:
    """Calls of one kind: what each took, how many were left out; results, where some may be left out."""

    times: list[Clocks] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    n_left_out: int = 0

    @property
    def n_calls(self) -> int:
        return len(self.times) + self.n_left_out

    def measured(self) -> Clocks:
        """What the calls took that were made."""
        return Clocks(sum(clocks.wall for clocks in self.times), sum(clocks.cpu for clocks in self.times))

    def total(self) -> Clocks:
        """What all calls take, if those left out are as long as the others."""
        scale = self.n_calls / max(len(self.times), 1)
        return Clocks(*(scale * seconds for seconds in self.measured()))


class Meter:
    """Times an engine part by part, and leaves out equal calls when there were enough."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.parts = {name: Part() for name in PARTS}
        self.whole = Clocks(0.0, 0.0)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted for this part."""
        part = self.parts[name]
        limit = self._seconds * SHARES[name] if name in SHARES else np.inf

        def call(*arguments: Any, **options: Any) -> Any:
            if part.times and part.measured().wall >= limit:
                part.n_left_out += 1
                return part.results[-1]
            wall, cpu = time.perf_counter(), time.process_time()
            result = function(*arguments, **options)
            _wait_for(result)
            part.times.append(Clocks(time.perf_counter() - wall, time.process_time() - cpu))
            if name in SHARES:
                part.results.append(result)
            return result

        return call

    def run(self, engine: Any, rows: Any) -> None:
        """Draw and score a block."""
        from bayesnde_cli.inference import diagnostics as chain_diagnostics
        from bayesnde_cli.inference import engine as engine_module

        timed = {name: self.timed(part, getattr(engine.programs, name)) for name, part in PROGRAMS.items()}
        measures: dict[str, Any] = {
            name: self.timed("diagnostics", getattr(chain_diagnostics, name)) for name in ("bulk_ess", "rhat")
        }
        with (
            patch.object(engine, "programs", engine.programs._replace(**timed)),
            patch.multiple(chain_diagnostics, **measures),
            patch.object(engine_module, "bridge", self.timed("bridge", bridge.bridge)),
        ):
            wall, cpu = time.perf_counter(), time.process_time()
            engine.score(rows, engine.sample(rows, SEED), SEED)
            self.whole = Clocks(time.perf_counter() - wall, time.process_time() - cpu)

    def totals(self) -> dict[str, Clocks]:
        """The time of each part for the whole block; `rest` is what happened between the calls."""
        made = [part.measured() for part in self.parts.values()]
        rest = Clocks(*(max(0.0, all_of_it - sum(parts)) for all_of_it, *parts in zip(self.whole, *made, strict=True)))
        return {**{name: part.total() for name, part in self.parts.items()}, "rest": rest}


def _wait_for(result: Any) -> None:
    """A GPU answers before it is done; the CPU does not."""
    while isinstance(result, tuple):
        result = result[0]
    if hasattr(result, "numpy"):
        result.numpy()


# Speed.


def settings_of(budget: str) -> Any:
    """The engine's settings of a budget, first try only: which rows need more is a matter of the fitted model."""
    settings = resolve(DensitySettings, preset=BUDGETS[budget]).with_defaults(are_images=False)
    return settings.model_copy(update={"escalations": 0})


def random_model(p: int, d: int, width: int) -> tuple[Any, int]:
    """A model of the default shape with random weights, and the number of weights in its decoder."""
    from bayesnde_cli.inference.fitted_model import FittedModel
    from bayesnde_cli.model import networks
    from bayesnde_cli.model.coders import decoder_of, decoder_spec, encoder_of, encoder_spec, initial_autoencoder

    decoder, encoder = (replace(spec_of(d, p), width=width) for spec_of in (decoder_spec, encoder_spec))
    weights = initial_autoencoder(decoder, encoder, SEED)
    model = FittedModel(decoder_of(decoder, weights), d, encoder_of(encoder, weights))
    return model, n_weights(networks.parameter_shapes(decoder))


def made_up_rows(model: Any, n_rows: int) -> Any:
    """Rows drawn from the model."""
    from bayesnde_cli.rows import Rows

    rng = np.random.default_rng(SEED)
    mean, variance, *_ = model.decoder(rng.standard_normal((n_rows, model.latent_dim), np.float32))
    noise = rng.standard_normal(mean.shape, np.float32)
    return Rows(mean.numpy() + np.sqrt(variance.numpy()) * noise, None, None)


def measure(options: argparse.Namespace, tf: Any) -> Iterator[dict[str, Any]]:
    """The figures of every shape and budget that was asked for, one after the other."""
    from bayesnde_cli.inference.engine import Engine

    peak = Peak(tf, min(0.15, options.seconds / 20))
    for shape, budget in product(options.only, options.budgets):
        p, d = map(int, shape.split("x"))
        model, size = random_model(p, d, options.width)
        rows, settings = made_up_rows(model, options.block_rows), settings_of(budget)
        engine = Engine(model, settings)
        first, meter = Meter(0.0), Meter(options.seconds)
        first.run(engine, rows)  # compiles; of equal calls there is one
        meter.run(engine, rows)
        # The call of HMC that took least CPU time for each of its gradients; a gradient is two passes of a chain.
        hmc, n_chains = meter.parts["hmc"], options.block_rows * settings.chains
        counts = [n_chains * int(np.sum(segment.n_gradients)) for _, segment in hmc.results]
        n_gradients, clocks = min(zip(counts, hmc.times, strict=True), key=lambda call: call[1].cpu / call[0])
        yield {
            "shape": shape,
            "budget": budget,
            "gradients_per_second": n_gradients / clocks.wall,
            "gradients_per_cpu_second": n_gradients / clocks.cpu,
            **peak.figures(2 * 2 * n_gradients * size / 1e9, clocks),
            **block_figures(meter, options.block_rows),
            "first_run_seconds": first.whole.wall,
        }


def block_figures(meter: Meter, n_rows: int) -> dict[str, Any]:
    """Rows per second, and the share of every part, with the calls that were left out."""
    totals = meter.totals()
    wall, cpu = (sum(clocks[index] for clocks in totals.values()) for index in (0, 1))
    calls = {name: f"{len(meter.parts[name].times)}/{meter.parts[name].n_calls}" for name in SHARES}
    return {
        "block_seconds": wall,
        "block_cpu_seconds": cpu,
        "rows_per_second": n_rows / wall,
        "rows_per_cpu_second": n_rows / cpu,
        "shares": {name: clocks.wall / wall for name, clocks in totals.items()},
        "calls": calls,  # made of all
    }


# Error.


def error_figures(options: argparse.Namespace) -> dict[str, Any]:
    """What the budgets make of test rows of a fitted run, against the long runs."""
    from bayesnde_cli.cli.console import Console
    from bayesnde_cli.runs.layout import RunLayout
    from bayesnde_cli.stages.scoring_job import make_job, open_rows

    layout = RunLayout(options.run)
    configs = {name: resolve(DensitySettings, flags={}, environ={}, preset=preset) for name, preset in BUDGETS.items()}
    job = make_job(layout, scoring_job.Asked(), configs["default"])
    test_rows = open_rows(job, Console(quiet=True))
    n_rows = min(options.rows, test_rows.n_rows)
    rows = test_rows.block(0, n_rows)

    def opened(config: DensitySettings) -> Any:
        return loading.open_engine(
            layout, config.model_copy(update={"seed": job.seed, "threads": options.threads})
        ).engine

    def told(name: str) -> None:
        print(f"{time.perf_counter() - started:7.0f} s  {name}", flush=True)

    started = time.perf_counter()
    long, references = opened(configs["default"].model_copy(update=REFERENCE)), []
    for index in (1, 2):
        seed = derive_seed(SEED, "reference", index)
        references.append(long.score(rows, long.sample(rows, seed), seed))
        told(f"reference {index} of 2")
    scores = {}
    for budget, name in (("paper", "paper"), ("default", "default, first try")):
        engine, seed = opened(configs[budget].model_copy(update={"escalations": 0})), derive_seed(SEED, budget)
        draws = engine.sample(rows, seed)
        scores[name] = engine.score(rows, draws, seed)
        told(name)
    # The same draws: what changes comes from the further tries alone.
    scores["default"] = opened(configs["default"]).score(rows, draws, seed)
    told("default")
    # And from as many draws of the proposal as the paper makes.
    more = opened(
        configs["default"].model_copy(update={"escalations": 0, "proposal_draws": configs["paper"].proposal_draws})
    )
    scores["paper's proposal draws"] = more.score(rows, draws, seed)
    told("paper's proposal draws")
    return {"run": str(options.run), **compared(scores, references)}


def compared(scores: Mapping[str, Mapping[str, Any]], references: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The errors of each variant, row by row, against the mean of two references. One of the variants is `paper`."""
    long = np.stack([found["log_density_scaled"] for found in references])  # (2, rows)
    reference_se = np.sqrt(sum(found["mc_se"] ** 2 for found in references)) / 2
    # It is distributed as the error of their mean.
    half_difference = np.abs(long[0] - long[1]) / 2
    is_known = np.isfinite(half_difference)
    variants = {}
    for name, found in scores.items():
        error = found["log_density_scaled"] - long.mean(axis=0)
        is_used = is_known & np.isfinite(error) & np.isfinite(found["mc_se"])
        error, se, se_there = error[is_used], found["mc_se"][is_used], reference_se[is_used]
        variants[name] = {
            "n_rows": int(is_used.sum()),
            "median_absolute_error": float(np.median(np.abs(error))),
            "absolute_error_95": float(np.quantile(np.abs(error), 0.95)),
            "largest_absolute_error": float(np.abs(error).max()),
            "mean_error": float(error.mean()),
            "median_mc_se": float(np.median(se)),
            "covered_share": float(np.mean(np.abs(error) <= 1.96 * np.hypot(se, se_there))),
            "reliable_share": float(np.mean(found["reliable"])),
            "gradients_per_row": float(np.mean(found["n_gradients"])),
            "gradients_of_paper": float(np.mean(found["n_gradients"]) / np.mean(scores["paper"]["n_gradients"])),
            "likelihoods_per_row": float(np.mean(found["n_likelihoods"])),
        }
    reference = {
        **REFERENCE,
        "n_rows": int(is_known.sum()),
        "median_absolute_error": float(np.median(half_difference[is_known])),
        "median_mc_se": float(np.median(reference_se[is_known])),
        "reliable_share": float(np.mean([found["reliable"] for found in references])),
    }
    bars = {name: reaches(found, variants["paper"]) for name, found in variants.items() if name != "paper"}
    return {"n_rows": len(is_known), "reference": reference, "variants": variants, "reaches_paper": bars}


def reaches(variant: Mapping[str, float], paper: Mapping[str, float]) -> bool:
    """Whether it has the paper's median error with a fifth of the gradients."""
    is_as_good = variant["median_absolute_error"] <= paper["median_absolute_error"]
    return is_as_good and variant["gradients_per_row"] <= MOST_GRADIENTS * paper["gradients_per_row"]


# Tables.

COLUMNS = {
    "shape": "{shape:<8}",
    "budget": "{budget:<9}",
    "gradients/s": "{gradients_per_second:>11.0f}",
    **PEAK_COLUMNS,
    "s/block": "{block_seconds:>9.1f}",
    "rows/s": "{rows_per_second:>8.2f}",
    "rows/CPU s": "{rows_per_cpu_second:>12.2f}",
    **{name: f"{{shares[{name}]:>13.1%}}" for name in (*PARTS, "rest")},
    "HMC calls": "{calls[hmc]:>11}",
    "proposal calls": "{calls[proposal]:>16}",
}
ERROR_COLUMNS = {
    "budget": "{name:<24}",
    "rows": "{n_rows:>5}",
    "median |error|": "{median_absolute_error:>16.4f}",
    "95 %": "{absolute_error_95:>9.4f}",
    "largest": "{largest_absolute_error:>9.4f}",
    "mean error": "{mean_error:>12.4f}",
    "median s.e.": "{median_mc_se:>13.4f}",
    "covered": "{covered_share:>9.0%}",
    "reliable": "{reliable_share:>10.0%}",
    "gradients/row": "{gradients_per_row:>15.0f}",
    "of paper": "{gradients_of_paper:>10.1%}",
    "likelihoods/row": "{likelihoods_per_row:>17.0f}",
}


def print_errors(found: Mapping[str, Any]) -> None:
    """Print the table of errors, and whether the default reaches the bar."""
    reference = found["reference"]
    print(
        f"{found['run']}, {found['n_rows']} test rows; the reference is finite for {reference['n_rows']}, reliable for "
        f"{reference['reliable_share']:.0%}, its own median |error| {reference['median_absolute_error']:.4f}"
    )
    print_cases(({"name": name, **variant} for name, variant in found["variants"].items()), ERROR_COLUMNS)
    bar = f"the paper's median error with at most {MOST_GRADIENTS:.0%} of its gradients"
    for name, is_met in found["reaches_paper"].items():
        print(f"{name}: {bar}: {'yes' if is_met else 'no'}")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the tables line by line, write the JSON."""
    shapes, block_rows = [f"{p}x{d}" for p, d in SHAPES], DensitySettings().block_rows
    parser = parser_of("Speed of scoring, and the error of the scores of a fitted run.", seconds=30.0)
    only = f"{', '.join(shapes)}; or none"
    parser.add_argument("--only", nargs="*", choices=shapes, default=shapes, metavar="SHAPE", help=only)
    parser.add_argument("--budgets", nargs="+", choices=BUDGETS, default=list(BUDGETS), help=", ".join(BUDGETS))
    parser.add_argument("--block-rows", type=int, default=block_rows, help="of the block that is timed")
    parser.add_argument("--width", type=int, default=256, help="of the hidden layers of decoder and encoder")
    parser.add_argument("--run", type=Path, help="a run with `refine` done: compare errors on its test rows")
    parser.add_argument("--rows", type=int, default=64, help="test rows of --run")
    options = parser.parse_args(argv)
    tf, device = load_tensorflow(threads=options.threads)
    tf.get_logger().setLevel("ERROR")  # every engine traces its own programs, which TensorFlow takes for a mistake
    print(f"TensorFlow {tf.__version__}, {device}; blocks of {options.block_rows} rows, width {options.width}")
    cases = print_cases(measure(options, tf), COLUMNS)
    if cases:
        print("calls: made/all; those not made are counted at the mean time of the others")
    errors = error_figures(options) if options.run else None
    if errors:
        print_errors(errors)
    names = ("block_rows", "width", "seconds")
    write_json(options, names, tensorflow=tf.__version__, device=device, cases=cases, errors=errors)


if __name__ == "__main__":
    main()
