"""What a training step costs, objective by objective, against what this machine can multiply.

    python benchmarks/training.py --json training.json
    python benchmarks/training.py --only egm map --seconds 1 --threads 1

Every case is a compiled round of the package's own loops on white-noise rows, in batches of 256. It is compiled first,
then timed from one and the same state. `of peak` is its share of the fastest float32 matrix product of the same run,
measured before and after every case; `of peak, CPU` the same per second of CPU time, which other programs on the
machine disturb less.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bayesnde_cli.model.backend import load_tensorflow

BATCH_ROWS = 256
N_DRAWS, N_TRANSITIONS, N_LEAPFROG = 8, 2, 5
AVERAGE_EPOCHS = 2.0  # as in the stages: the running mean of the weights is part of a step
N_REPETITIONS = 3
SEED = 1

# p columns, d latents; the package makes the first an mlp, the others residual networks.
SHAPES = ((2, 2), (15, 15), (17, 8))

# Authors' code, CPU ms on one core of such a machine: per EGM step and per refinement batch, by p, lowest and highest.
AUTHORS_EGM = {2: (62.0, 62.0), 15: (192.0, 218.0), 17: (176.0, 188.0)}
AUTHORS_REFINEMENT = {2: (36.0, 36.0), 15: (159.0, 159.0), 17: (43.0, 176.0)}


# Operations. Only the matrix products of the networks count: those inside the losses (correlation, MMD, slices) are
# less than a hundredth of them, and what is no product at all is overhead by this measure.

Kernels = Sequence[tuple[int, int]]  # (inputs, outputs) of every dense layer, from input to output


@dataclass(frozen=True)
class NetworkKernels:
    """The dense layers of each network. `code` is the encoder without the head of its s.d., which EGM leaves idle."""

    decoder: Kernels
    encoder: Kernels
    code: Kernels
    discriminator_x: Kernels
    discriminator_z: Kernels


def forward(kernels: Kernels, rows: int) -> int:
    """A multiplication and an addition for each weight and row."""
    return 2 * rows * sum(n_in * n_out for n_in, n_out in kernels)


def for_inputs(kernels: Kernels, rows: int) -> int:
    """Forward, and back to the inputs: a product of the same size in each layer."""
    return 2 * forward(kernels, rows)


def for_both(kernels: Kernels, rows: int) -> int:
    """Forward, and back to inputs and weights: two products of the same size in each layer."""
    return 3 * forward(kernels, rows)


def for_weights(kernels: Kernels, rows: int) -> int:
    """As `for_both`, but that the first layer, whose inputs are data or noise, hands nothing on to them."""
    return 3 * forward(kernels, rows) - forward(kernels[:1], rows)


def egm_flop(networks: NetworkKernels, rows: int) -> int:
    """A step of the critics, then one of decoder G and encoder E; the same for all ten terms and for the defaults."""
    pair, critics = (networks.decoder, networks.code), (networks.discriminator_x, networks.discriminator_z)
    flop = sum(forward(network, rows) for network in pair)  # G(z) and E(x), to be judged
    flop += sum(2 * for_weights(critic, rows) for critic in critics)  # a true and a false batch each
    flop += sum(for_weights(network, rows) for network in pair)  # G(z) and E(x) on another batch
    flop += sum(for_both(network, rows) for network in pair)  # G(E(x)) and E(G(z))
    return flop + sum(for_inputs(critic, rows) for critic in critics)


def elbo_flop(networks: NetworkKernels, rows: int, n_draws: int = 1) -> int:
    """x through the encoder, a draw for each row through the decoder, and back to the weights of both."""
    return for_weights(networks.encoder, rows) + for_both(networks.decoder, n_draws * rows)


def importance_flop(networks: NetworkKernels, rows: int) -> int:
    """As `elbo_flop` with several draws; the gradients for decoder and encoder share the decoder's backward pass."""
    return elbo_flop(networks, rows, N_DRAWS)


def map_flop(networks: NetworkKernels, rows: int) -> int:
    """A step of the latents, then one of the decoder at the new latents."""
    return for_inputs(networks.decoder, rows) + for_weights(networks.decoder, rows)


def map_regularised_flop(networks: NetworkKernels, rows: int) -> int:
    """As `map_flop`, and the decoder at draws of the prior for the MMD. The correlation needs no pass of its own."""
    return map_flop(networks, rows) + for_weights(networks.decoder, rows)


def posterior_flop(networks: NetworkKernels, rows: int) -> int:
    """For each transition a gradient at its start and after each leapfrog, then the decoder's step.

    The lag reads log p(x, z) before and after: the one before is another forward pass, the other the step's own.
    """
    n_gradients = N_TRANSITIONS * (1 + N_LEAPFROG)
    chains = n_gradients * for_inputs(networks.decoder, rows) + forward(networks.decoder, rows)
    return chains + for_weights(networks.decoder, rows)


# Time.


class Clocks(NamedTuple):
    """Seconds, or GFLOP per second, by the clock on the wall and by the CPU time of all our threads."""

    wall: float
    cpu: float


def repetitions(call: Callable[[], object], seconds: float) -> list[Clocks]:
    """Clockss of a call, each a mean over a third of the seconds, or over one call if that takes longer."""
    timings = []
    for _ in range(N_REPETITIONS):
        wall, cpu, n_calls = time.perf_counter(), time.process_time(), 0
        while n_calls == 0 or time.perf_counter() - wall < seconds / N_REPETITIONS:
            call()
            n_calls += 1
        timings.append(Clocks((time.perf_counter() - wall) / n_calls, (time.process_time() - cpu) / n_calls))
    return timings


def peak_meter(tf: Any, seconds: float) -> Callable[[], Clocks]:
    """A function that measures the peak: of large and of layer-sized float32 products, compiled by XLA and plain."""

    def chain(h: Any, weight: Any, *, n_products: int) -> Any:
        for _ in range(n_products):
            h = tf.matmul(h, weight)
        return h

    products = []
    for n_rows, width, n_products in ((2048, 2048, 1), (2048, 256, 8), (256, 256, 16)):
        plain = partial(chain, n_products=n_products)
        h, weight = tf.random.normal([n_rows, width]), tf.random.normal([width, width]) / width**0.5
        for function in (plain, tf.function(plain, jit_compile=True, autograph=False)):
            function(h, weight)
            products.append((forward([(width, width)] * n_products, n_rows) / 1e9, partial(function, h, weight)))

    def measure() -> Clocks:
        timed = [(gflop, timing) for gflop, call in products for timing in repetitions(call, seconds)]
        return Clocks(max(gflop / timing.wall for gflop, timing in timed), max(gflop / t.cpu for gflop, t in timed))

    return measure


FLOP: dict[str, Callable[[NetworkKernels, int], int]] = {
    "egm-all": egm_flop,
    "egm": egm_flop,
    "elbo": elbo_flop,
    "importance": importance_flop,
    "map-regularised": map_regularised_flop,
    "map": map_flop,
    "posterior": posterior_flop,
}
AUTHORS = {"egm-all": AUTHORS_EGM, "egm": AUTHORS_EGM, "map-regularised": AUTHORS_REFINEMENT}


def kernels_of(shapes: Mapping[str, Any]) -> Kernels:
    """The dense layers among the parameters of a network."""
    return [shape for name, shape in shapes.items() if name.endswith("/kernel")]


def compiled_round(objective: str, specs: tuple[Any, Any, Any, Any], x: Any) -> Callable[[], None]:
    """A call that makes a round of one step for each batch of the rows, always from the same state."""
    import tensorflow as tf

    from bayesnde_cli.inference import hmc
    from bayesnde_cli.training import autoencoder_state, bound_loop, egm_loop, latent_loop
    from bayesnde_cli.training.joint_parameters import initial_autoencoder

    decoder, encoder, *_ = specs
    weights, n_steps = initial_autoencoder(decoder, encoder, SEED), len(x) // BATCH_ROWS
    run: Any
    state: Any
    if objective in ("egm", "egm-all"):
        terms = {item.name: 1.0 for item in fields(egm_loop.EgmWeights) if objective == "egm-all"}
        egm = egm_loop.EgmSettings(
            egm_loop.EgmWeights(**terms), BATCH_ROWS, n_steps, average_steps=AVERAGE_EPOCHS * n_steps, slicing_seed=SEED
        )
        run, state = egm_loop.round_runner(*specs, egm), egm_loop.start(*specs, SEED, weights)
    elif objective in ("elbo", "importance"):
        n_draws = N_DRAWS if objective == "importance" else 1
        bound = bound_loop.BoundSettings(BATCH_ROWS, n_draws, average_epochs=AVERAGE_EPOCHS)
        run, state = bound_loop.round_runner(decoder, encoder, bound), autoencoder_state.start(weights)
    else:
        mmd, correlation = (1000.0, 0.3) if objective == "map-regularised" else (0.0, 0.0)
        latent = latent_loop.LatentSettings(
            objective.removesuffix("-regularised"), BATCH_ROWS, average_epochs=AVERAGE_EPOCHS,
            mmd_weight=mmd, correlation_weight=correlation, n_transitions=N_TRANSITIONS, n_leapfrog=N_LEAPFROG,
        )  # fmt: skip
        run = latent_loop.round_runner(decoder, latent, hmc.transition)
        state = latent_loop.start(encoder, weights, x, None)

    seed = tf.constant(SEED)
    state, _ = run(state, x, None, seed)  # from here on the optimizer's moments are no zeros

    def call() -> None:
        _, losses = run(state, x, None, seed)
        # A round ends early at a loss that is not finite, and its time would mean nothing.
        if losses["first_bad_step"].numpy() >= 0:
            raise FloatingPointError(f"{objective}: the loss is not finite on white noise")

    call()
    return call


def measured(options: argparse.Namespace, tf: Any) -> Iterator[dict[str, Any]]:
    """The figures of every case that was asked for, one after the other."""
    from bayesnde_cli.model import discriminator, networks
    from bayesnde_cli.model.decoder import decoder_spec
    from bayesnde_cli.model.encoder import encoder_spec

    peak = peak_meter(tf, options.seconds / 20)
    before = peak()
    for objective, (p, d) in product(options.only, SHAPES):
        decoder, encoder = (replace(spec_of(d, p), width=options.width) for spec_of in (decoder_spec, encoder_spec))
        bodies = (decoder, encoder, replace(encoder, heads=("mean",)))
        critic_x, critic_z = (discriminator.DiscriminatorSpec(n_in) for n_in in (p, d))
        shapes = [*map(networks.parameter_shapes, bodies), *map(discriminator.parameter_shapes, (critic_x, critic_z))]
        gflop = FLOP[objective](NetworkKernels(*map(kernels_of, shapes)), BATCH_ROWS) / 1e9
        x = tf.random.stateless_normal([options.rows, p], [SEED, p])
        timings = repetitions(compiled_round(objective, (decoder, encoder, critic_x, critic_z), x), options.seconds)
        wall, cpu = (value / (options.rows // BATCH_ROWS) for value in min(timings, key=lambda timing: timing.cpu))
        after = peak()
        top, before = Clocks(*map(max, before, after)), after
        authors = AUTHORS.get(objective, {}).get(p)
        yield {
            "objective": objective, "columns": p, "latents": d, "kind": decoder.kind,
            "wall_ms": 1e3 * wall, "cpu_ms": 1e3 * cpu, "steps_per_second": 1.0 / wall,
            "gflop": gflop, "gflop_per_second": gflop / wall, "gflop_per_cpu_second": gflop / cpu,
            "peak_gflop_per_second": top.wall, "peak_gflop_per_cpu_second": top.cpu,
            "peak_share": gflop / wall / top.wall, "peak_share_cpu": gflop / cpu / top.cpu,
            "authors_cpu_ms": authors, "authors_ratio": authors[0] / (1e3 * cpu) if authors else None,
        }  # fmt: skip


HEADINGS = (
    "objective", "shape", "ms/step", "CPU ms", "steps/s", "GFLOP", "GFLOP/s", "peak", "of peak", "of peak, CPU",
    "authors' CPU ms", "ratio",
)  # fmt: skip
LINE = "{:<16}{:<18}{:>8}{:>8}{:>9}{:>8}{:>9}{:>6}{:>9}{:>14}{:>17}{:>7}"


def line_of(case: dict[str, Any]) -> str:
    """The line of a case in the table."""
    authors, ratio = case["authors_cpu_ms"] or (), case["authors_ratio"]
    return LINE.format(
        case["objective"],
        f"p={case['columns']} z={case['latents']} {case['kind']}",
        *(f"{case[name]:.2f}" for name in ("wall_ms", "cpu_ms", "steps_per_second", "gflop")),
        *(f"{case[name]:.0f}" for name in ("gflop_per_second", "peak_gflop_per_second")),
        *(f"{case[name]:.0%}" for name in ("peak_share", "peak_share_cpu")),
        "-".join(f"{ms:.0f}" for ms in sorted(set(authors))),
        f"{ratio:.1f}" if ratio else "",
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table line by line, write the JSON."""
    parser = argparse.ArgumentParser(description="Time, operations and share of the peak of every training objective.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    parser.add_argument("--seconds", type=float, default=3.0, help="timing of each case, in three repetitions")
    parser.add_argument("--only", nargs="+", choices=FLOP, default=list(FLOP), metavar="NAME", help=", ".join(FLOP))
    parser.add_argument("--rows", type=int, default=4096, help="a round is one step for each 256 of them")
    parser.add_argument("--width", type=int, default=256, help="of the hidden layers of decoder and encoder")
    parser.add_argument("--threads", type=int, help="of TensorFlow; without it, all cores")
    options = parser.parse_args(argv)
    if options.rows < BATCH_ROWS:
        parser.error(f"--rows: expected at least {BATCH_ROWS}, got {options.rows}")
    tf, device = load_tensorflow(threads=options.threads)
    print(f"TensorFlow {tf.__version__}, {device}; {options.rows} rows, batches of {BATCH_ROWS}")
    print(LINE.format(*HEADINGS), flush=True)
    cases = []
    for case in measured(options, tf):
        print(line_of(case), flush=True)
        cases.append(case)
    if options.json:
        settings = {name: getattr(options, name) for name in ("rows", "width", "seconds")}
        run = {"tensorflow": tf.__version__, "device": device, **settings, "cases": cases}
        options.json.write_text(json.dumps(run, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
