"""What a training step costs, objective by objective, against what this machine can multiply.

    python benchmarks/training.py --json training.json
    python benchmarks/training.py --only egm map --seconds 1 --threads 1

Every case is a compiled round of the package's own loop on white-noise rows, in batches of 256. It is compiled first,
then timed from one and the same state. `of peak` is its share of the fastest float32 matrix product of the same run;
`of peak, CPU` the same per second of CPU time, which other programs on the machine disturb less.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from timing import PEAK_COLUMNS, Peak, fastest, parser_of, print_cases, write_json

from bayesnde_cli.model.backend import load_tensorflow
from bayesnde_cli.settings.stage_settings import RefineSettings, WarmstartSettings

BATCH_ROWS, SEED = 256, 1
N_DRAWS, N_TRANSITIONS, N_LEAPFROG = 8, 2, 5
# p columns, d latents; the package makes the first an mlp, the others residual networks.
SHAPES = ((2, 2), (15, 15), (17, 8))

# Passes of a batch through decoder, encoder and discriminators in a step: 1 forward, 2 with the gradient for inputs, 3
# with that for weights, too. Only these products count; those inside the losses are less than a hundredth of them.
# EGM: G(z) and E(x) for the critics' step (1), on another batch (3), G(E(x)) and E(G(z)) (3); a critic judges a real
# and a fake batch (3 each), and passes the gradient back to decoder or encoder (2).
PASSES = {
    "egm-all": (7, 7, 8),
    "egm": (7, 7, 8),
    "elbo": (3, 3, 0),
    "importance": (3 * N_DRAWS, 3, 0),
    "map-regularised": (2 + 3 + 3, 0, 0),  # latents, decoder, decoder at draws of the prior
    "map": (2 + 3, 0, 0),
    # A gradient at the start of a transition and after each leapfrog step, the lag, and the decoder's step.
    "posterior": (2 * N_TRANSITIONS * (1 + N_LEAPFROG) + 1 + 3, 0, 0),
}
# Authors' code, CPU ms on one core of such a machine: per EGM step and per refinement batch, by p, the least.
_AUTHORS_EGM, _AUTHORS_REFINEMENT = {2: 62.0, 15: 192.0, 17: 176.0}, {2: 36.0, 15: 159.0, 17: 43.0}
AUTHORS = {"egm-all": _AUTHORS_EGM, "egm": _AUTHORS_EGM, "map-regularised": _AUTHORS_REFINEMENT}

COLUMNS = {
    "objective": "{objective:<16}",
    "shape": "p={columns:<3}z={latents:<3}{kind:<9}",
    "ms/step": "{wall_ms:>8.2f}",
    "CPU ms": "{cpu_ms:>8.2f}",
    "GFLOP": "{gflop:>8.2f}",
    **PEAK_COLUMNS,
    "authors/ours": "{authors:>14}",
}


def n_weights(shapes: dict[str, tuple[int, ...]]) -> int:
    """The number of weights in the dense layers of a network: products for each row."""
    return sum(prod(shape) for name, shape in shapes.items() if name.endswith("/kernel"))


def compiled_round(objective: str, specs: Sequence[Any], x: Any) -> Callable[[], None]:
    """A call that makes a round of one step for each batch of the rows, always from the same state."""
    import tensorflow as tf

    from bayesnde_cli.model.coders import Networks, initial_autoencoder
    from bayesnde_cli.training.adversarial import TERMS, Critics, adversarial_objective
    from bayesnde_cli.training.latents import latent_objective
    from bayesnde_cli.training.loop import compile_round
    from bayesnde_cli.training.objectives import Pace, evidence_objective, importance_objective

    decoder, encoder, *critics = specs
    networks, n_steps = Networks(decoder, encoder), len(x) // BATCH_ROWS
    pace = Pace(len(x), BATCH_ROWS, n_steps, 1, 1)
    common: dict[str, Any] = {"seed": SEED, "schedule": "constant", "learning_rate": 1e-3}
    if objective in ("egm", "egm-all"):
        terms = {f"{name}_weight": 1.0 for name in TERMS if objective == "egm-all"}
        settings = WarmstartSettings(objective="egm", **common, **terms)
        functions = adversarial_objective(networks, settings, pace, Critics(*critics))
    elif objective == "elbo":
        functions = evidence_objective(networks, WarmstartSettings(kl_warm_up=0.0, **common), pace)
    elif objective == "importance":
        functions = importance_objective(networks, RefineSettings(draws=N_DRAWS, **common), pace)
    else:
        update, _, is_regularised = objective.partition("-")
        weights = {"mmd_weight": 1000.0, "correlation_weight": 0.3} if is_regularised else {}
        common |= {"transitions": N_TRANSITIONS, "leapfrogs": N_LEAPFROG, "learning_rate": 5e-3}
        functions = latent_objective(networks, RefineSettings(latent_update=update, **weights, **common), pace)
    run, rows, seed = compile_round(functions, n_steps), (x, None), tf.constant(SEED)
    state = functions.start(initial_autoencoder(decoder, encoder, SEED), rows)
    state, _ = run(state, rows, seed)  # from here on the optimizer's moments are not zero

    def call() -> None:
        _, losses = run(state, rows, seed)
        # A round ends early at a loss that is not finite, and its time would mean nothing.
        if losses["first_bad_step"].numpy() >= 0:
            raise FloatingPointError(f"{objective}: the loss is not finite on white noise")

    call()
    return call


def measure(options: Any, tf: Any) -> Iterator[dict[str, Any]]:
    """The figures of every case, one after the other."""
    from bayesnde_cli.model import coders, networks

    peak = Peak(tf, options.seconds / 20)
    for objective, (p, d) in product(options.only, SHAPES):
        specs = (coders.decoder_spec, coders.encoder_spec)
        decoder, encoder = (replace(spec_of(d, p), width=options.width) for spec_of in specs)
        critics = [coders.DiscriminatorSpec(n_in) for n_in in (p, d)]
        sizes = [n_weights(networks.parameter_shapes(spec)) for spec in (decoder, encoder)]
        sizes.append(sum(n_weights(networks.parameter_shapes(spec)) for spec in critics))
        n_products = sum(n * size for n, size in zip(PASSES[objective], sizes, strict=True))
        gflop = 2 * BATCH_ROWS * n_products / 1e9
        x = tf.random.stateless_normal([options.rows, p], [SEED, p])
        call = compiled_round(objective, (decoder, encoder, *critics), x)
        clocks = fastest(call, options.seconds, options.rows // BATCH_ROWS)
        authors_ms = AUTHORS.get(objective, {}).get(p)
        yield {
            "objective": objective,
            "columns": p,
            "latents": d,
            "kind": decoder.kind,
            "wall_ms": 1e3 * clocks.wall,
            "cpu_ms": 1e3 * clocks.cpu,
            "gflop": gflop,
            **peak.figures(gflop, clocks),
            "authors": f"{authors_ms / 1e3 / clocks.cpu:.1f}" if authors_ms else "",
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table line by line, write the JSON."""
    parser = parser_of("Time, operations and share of the peak of every training objective.", seconds=3.0)
    names = list(PASSES)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rows", type=int, default=4096, help="a round is one step for each 256 of them")
    parser.add_argument("--width", type=int, default=256, help="of the hidden layers of decoder and encoder")
    options = parser.parse_args(argv)
    if options.rows < BATCH_ROWS:
        parser.error(f"--rows: expected at least {BATCH_ROWS}, got {options.rows}")
    tf, device = load_tensorflow(threads=options.threads)
    print(f"TensorFlow {tf.__version__}, {device}; {options.rows} rows, batches of {BATCH_ROWS}")
    cases = print_cases(measure(options, tf), COLUMNS)
    write_json(options, ("rows", "width", "seconds"), tensorflow=tf.__version__, device=device, cases=cases)


if __name__ == "__main__":
    main()
