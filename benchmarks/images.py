"""What the networks of images cost, against what this machine can multiply.

    python benchmarks/images.py --json images.json
    python benchmarks/images.py --size 8 --channels 8 --seconds 1 --threads 1

Two cases on white noise: `gradient`, transitions of HMC on the decoder, as scoring makes them; `elbo`, steps of the
warm start. Each is one compiled loop, compiled first and then timed. Only the products of the networks count: each
weight of a convolution for every pixel, forward and back. `of peak` is as in training.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from timing import PEAK_COLUMNS, Peak, fastest, parser_of, print_cases, write_json

from bayesnde_cli.model.backend import load_tensorflow
from bayesnde_cli.settings.stage_settings import WarmstartSettings

LATENTS, CLASSES, SEED = 10, 10, 1
N_LEAPFROG, N_TRANSITIONS, N_STEPS = 10, 2, 4
COLUMNS = {
    "case": "{case:<10}",
    "rows": "{rows:>6}",
    "ms": "{wall_ms:>10.1f}",
    "CPU ms": "{cpu_ms:>10.1f}",
    "GFLOP": "{gflop:>8.1f}",
    **PEAK_COLUMNS,
}


def gradient_call(networks: Any, weights: Any, x: Any, y: Any) -> Callable[[], None]:
    """A call that makes transitions of HMC, one chain for each row."""
    import tensorflow as tf

    from bayesnde_cli.inference import hmc
    from bayesnde_cli.model.coders import decoder_of
    from bayesnde_cli.model.likelihood import Target
    from bayesnde_cli.stages.loading import images_at_once

    decoder, step_size = networks.decoder, tf.fill([x.shape[0]], 1e-3)

    @tf.function(jit_compile=True, autograph=False)
    def run(weights: Any, x: Any, y: Any, z: Any) -> Any:
        density = Target(x, None, y).log_density(decoder_of(decoder, weights), images_at_once(decoder))

        def transition(index: Any, z: Any) -> Any:
            z, _ = hmc.transition(density, z, step_size, tf.stack([SEED, index]), n_leapfrog=N_LEAPFROG)
            return index + 1, z

        return tf.while_loop(lambda index, _: index < N_TRANSITIONS, transition, (tf.constant(0), z))[1]

    z = tf.random.stateless_normal([x.shape[0], LATENTS], [SEED, 0])
    return lambda: run(weights, x, y, z).numpy()


def elbo_call(networks: Any, weights: Any, x: Any, y: Any) -> Callable[[], None]:
    """A call that makes a round of steps, always from the same state; x and y are one batch."""
    import tensorflow as tf

    from bayesnde_cli.training.loop import compile_round
    from bayesnde_cli.training.objectives import Pace, evidence_objective

    pace = Pace(N_STEPS * x.shape[0], x.shape[0], N_STEPS, 1, 1)
    objective = evidence_objective(networks, WarmstartSettings(kl_warm_up=0.0, learning_rate=1e-3), pace)
    run = compile_round(objective, N_STEPS)
    many = tuple(tf.tile(part, [N_STEPS, 1]) for part in (x, y))
    state, _ = run(objective.start(weights, many), many, tf.constant(SEED))

    def call() -> None:
        _, losses = run(state, many, tf.constant(SEED))
        if losses["first_bad_step"].numpy() >= 0:
            raise FloatingPointError("the loss is not finite on white noise")

    return call


# The call, the gradients or steps in it, and passes through decoder and encoder in each: 2 with the gradient for
# inputs, 3 with that for weights, too.
CASES: dict[str, tuple[Callable[..., Callable[[], None]], int, tuple[int, int]]] = {
    "gradient": (gradient_call, N_TRANSITIONS * (N_LEAPFROG + 1), (2, 0)),
    "elbo": (elbo_call, N_STEPS, (3, 3)),
}


def measure(options: Any, tf: Any) -> Iterator[dict[str, Any]]:
    """The figures of every case."""
    from bayesnde_cli.model.coders import Networks, image_decoder_spec, image_encoder_spec, initial_autoencoder
    from bayesnde_cli.model.networks import n_products
    from bayesnde_cli.tables.columns import N_LEVELS

    image = (options.size, options.size, 1)
    specs = (image_decoder_spec, image_encoder_spec)
    decoder, encoder = (replace(spec(LATENTS, image, CLASSES), width=options.channels) for spec in specs)
    decoder = replace(decoder, levels=N_LEVELS, class_maps=True)  # as `warmstart` has it
    weights = initial_autoencoder(decoder, encoder, SEED)
    x = tf.random.stateless_normal([options.rows, options.size**2], [SEED, 1])
    y = tf.one_hot(tf.range(options.rows) % CLASSES, CLASSES)
    peak = Peak(tf, options.seconds / 20)
    for case in options.only:
        make_call, n_units, passes = CASES[case]
        call = make_call(Networks(decoder, encoder), weights, x, y)
        call()
        clocks = fastest(call, options.seconds, n_units)
        gflop = 2 * options.rows * (passes[0] * n_products(decoder) + passes[1] * n_products(encoder)) / 1e9
        times = {"wall_ms": 1e3 * clocks.wall, "cpu_ms": 1e3 * clocks.cpu}
        yield {"case": case, "rows": options.rows, **times, "gflop": gflop, **peak.figures(gflop, clocks)}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table line by line, write the JSON."""
    parser = parser_of("Time, operations and share of the peak of the networks of images.", seconds=10.0)
    names = list(CASES)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rows", type=int, default=64, help="images at once")
    parser.add_argument("--size", type=int, default=28, help="height and width of the images")
    parser.add_argument("--channels", type=int, default=32, help="of the networks: --width of warmstart")
    options = parser.parse_args(argv)
    tf, device = load_tensorflow(threads=options.threads)
    print(f"TensorFlow {tf.__version__}, {device}; images of {options.size} x {options.size}")
    cases = print_cases(measure(options, tf), COLUMNS)
    write_json(options, ("size", "channels"), tensorflow=tf.__version__, device=device, cases=cases)


if __name__ == "__main__":
    main()
