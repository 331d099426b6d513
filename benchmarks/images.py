"""What the networks of images cost, against what this machine can multiply.

    python benchmarks/images.py --json images.json
    python benchmarks/images.py --size 8 --channels 8 --seconds 1 --threads 1

Two cases on white noise: `gradient`, transitions of HMC on the decoder, as scoring makes them; `elbo`, steps of the
warm start. Each is one compiled loop, compiled first and then timed. Only the products of the networks count:
each weight of a convolution for every pixel, forward and back. `of peak` is as in training.py.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bayesnde_cli.model.backend import load_tensorflow
from training import Clocks, peak_meter, repetitions

LATENTS, CLASSES, SEED = 10, 10, 1
N_LEAPFROG, N_TRANSITIONS, N_STEPS = 10, 2, 4
CASES = ("gradient", "elbo")


def gflop_of(case: str, decoder: int, encoder: int, rows: int) -> float:
    """Operations of a gradient, or of a step, for networks of so many products of a number and a weight a row."""
    if case == "gradient":  # forward, and back to the latents: a product of the same size in each layer
        return 2 * 2 * rows * decoder / 1e9
    return 3 * 2 * rows * (decoder + encoder) / 1e9  # back to the weights, too


def gradient_call(decoder: Any, weights: Any, x: Any, y: Any) -> Callable[[], None]:
    """A call that makes transitions of HMC, one chain for each row."""
    import tensorflow as tf

    from bayesnde_cli.inference import hmc
    from bayesnde_cli.inference.target import Target
    from bayesnde_cli.stages.scoring.fitted_model import images_at_once
    from bayesnde_cli.training.joint_parameters import decoder_of

    step_size = tf.fill([x.shape[0]], 1e-3)

    @tf.function(jit_compile=True, autograph=False)
    def run(weights: Any, x: Any, y: Any, z: Any) -> Any:
        density = Target(x, None, y).log_density(decoder_of(decoder, weights), images_at_once(decoder))

        def transition(index: Any, z: Any) -> Any:
            z, _ = hmc.transition(density, z, step_size, tf.stack([SEED, index]), n_leapfrog=N_LEAPFROG)
            return index + 1, z

        return tf.while_loop(lambda index, _: index < N_TRANSITIONS, transition, (tf.constant(0), z))[1]

    z = tf.random.stateless_normal([x.shape[0], LATENTS], [SEED, 0])
    return lambda: run(weights, x, y, z).numpy()


def elbo_call(decoder: Any, encoder: Any, weights: Any, x: Any, y: Any) -> Callable[[], None]:
    """A call that makes a round of steps, always from the same state; x and y are one batch."""
    import tensorflow as tf

    from bayesnde_cli.training import autoencoder_state, bound_loop

    settings = bound_loop.BoundSettings(batch_rows=x.shape[0], has_batch_statistics=True)
    run = bound_loop.round_runner(decoder, encoder, settings)
    many = [tf.tile(part, [N_STEPS, 1]) for part in (x, y)]
    state, _ = run(autoencoder_state.start(weights), *many, tf.constant(SEED))

    def call() -> None:
        _, losses = run(state, *many, tf.constant(SEED))
        if losses["first_bad_step"].numpy() >= 0:
            raise FloatingPointError("the loss is not finite on white noise")

    return call


def measured(options: argparse.Namespace, tf: Any) -> Iterator[dict[str, Any]]:
    """The figures of every case that was asked for."""
    from dataclasses import replace

    from bayesnde_cli.data.image import N_LEVELS
    from bayesnde_cli.model.decoder import image_decoder_spec
    from bayesnde_cli.model.encoder import image_encoder_spec
    from bayesnde_cli.model.networks import n_products
    from bayesnde_cli.training.joint_parameters import initial_autoencoder

    image = (options.size, options.size, 1)
    decoder, encoder = (
        replace(spec(LATENTS, image, CLASSES), width=options.channels)
        for spec in (image_decoder_spec, image_encoder_spec)
    )
    decoder = replace(decoder, levels=N_LEVELS, class_maps=True)  # as `warmstart` has it
    weights = initial_autoencoder(decoder, encoder, SEED)
    x = tf.random.stateless_normal([options.rows, options.size**2], [SEED, 1])
    y = tf.one_hot(tf.range(options.rows) % CLASSES, CLASSES)
    peak = peak_meter(tf, options.seconds / 20)
    before = peak()
    for case in options.only:
        is_gradient = case == "gradient"
        call = gradient_call(decoder, weights, x, y) if is_gradient else elbo_call(decoder, encoder, weights, x, y)
        call()
        n_done = N_TRANSITIONS * (N_LEAPFROG + 1) if is_gradient else N_STEPS
        best = min(repetitions(call, options.seconds), key=lambda timing: timing.cpu)
        wall, cpu = (value / n_done for value in best)
        gflop = gflop_of(case, n_products(decoder), n_products(encoder), options.rows)
        after = peak()
        top, before = Clocks(*map(max, before, after)), after
        yield {
            "case": case, "rows": options.rows, "wall_ms": 1e3 * wall, "cpu_ms": 1e3 * cpu, "gflop": gflop,
            "gflop_per_second": gflop / wall, "peak_gflop_per_second": top.wall,
            "peak_share": gflop / wall / top.wall, "peak_share_cpu": gflop / cpu / top.cpu,
        }  # fmt: skip


LINE = "{:<10}{:>6}{:>10}{:>10}{:>8}{:>9}{:>6}{:>9}{:>14}"


def line_of(case: dict[str, Any]) -> str:
    """The line of a case in the table."""
    return LINE.format(
        case["case"], case["rows"],
        *(f"{case[name]:.1f}" for name in ("wall_ms", "cpu_ms", "gflop")),
        *(f"{case[name]:.0f}" for name in ("gflop_per_second", "peak_gflop_per_second")),
        *(f"{case[name]:.0%}" for name in ("peak_share", "peak_share_cpu")),
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table line by line, write the JSON."""
    parser = argparse.ArgumentParser(description="Time, operations and share of the peak of the networks of images.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    parser.add_argument("--seconds", type=float, default=10.0, help="timing of each case, in three repetitions")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--rows", type=int, default=64, help="images at once")
    parser.add_argument("--size", type=int, default=28, help="height and width of the images")
    parser.add_argument("--channels", type=int, default=32, help="of the networks: --width of warmstart")
    parser.add_argument("--threads", type=int, help="of TensorFlow; without it, all cores")
    options = parser.parse_args(argv)
    tf, device = load_tensorflow(threads=options.threads)
    print(f"TensorFlow {tf.__version__}, {device}; images of {options.size} x {options.size}")
    print(
        LINE.format("case", "rows", "ms", "CPU ms", "GFLOP", "GFLOP/s", "peak", "of peak", "of peak, CPU"), flush=True
    )
    cases = []
    for case in measured(options, tf):
        print(line_of(case), flush=True)
        cases.append(case)
    if options.json:
        run = {"tensorflow": tf.__version__, "device": device, "size": options.size, "channels": options.channels,
               "cases": cases}  # fmt: skip
        options.json.write_text(json.dumps(run, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
