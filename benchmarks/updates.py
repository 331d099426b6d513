"""Compare the latent updates of `refine` at equal wall time, from one warm start, on validation rows.

    python benchmarks/updates.py RUN [--seconds 120] [--seed 0]

RUN is a run directory with `prepare` and `warmstart` done; nothing in it is changed. Each update gets as many epochs as
fit into the time, by the pace of its first rounds; compilation, burn-in and checks are not counted. Prints the mean
validation log-density (units of the file) of the start, and of every update the best validation check and the last.
"""

import argparse
import json
import time
from pathlib import Path

from bayesnde_cli.model.backend import load_tensorflow
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.settings.stage_settings import RefineSettings

N_CHECKS = 8  # validation checks; `refine` would keep the best
UPDATES = {
    "importance": {"learning_rate": 1e-3},
    "posterior": {"learning_rate": 5e-4},
    "map": {"learning_rate": 1e-3},
    "map, the paper's rates": {"learning_rate": 5e-3, "schedule": "constant"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=UPDATES, default=list(UPDATES))
    options = parser.parse_args()
    tf = load_tensorflow().tensorflow
    from bayesnde_cli.model.coders import Networks
    from bayesnde_cli.stages.loading import read_networks
    from bayesnde_cli.tables.model_rows import read_split
    from bayesnde_cli.training.recipes import phases_of
    from bayesnde_cli.training.selection import ValidationCheck
    from bayesnde_cli.training.training_rows import as_tensors

    layout = RunLayout(options.run)
    train = read_split(layout, "train")
    base = RefineSettings(seed=options.seed, validation_draws=256).with_defaults(len(train))
    data = as_tensors(train)
    stored = read_networks(layout, "warmstart")
    networks = Networks(stored.decoder, stored.encoder)
    weights = {name: tf.constant(array) for name, array in stored.weights.items()}
    seed = tf.constant(options.seed)
    check = ValidationCheck(base, networks, read_split(layout, "validation"))
    found: dict[str, dict[str, object]] = {"start": {"best": check(weights)["marginal"]}}
    print(f"start: {found['start']['best']}", flush=True)
    for name in options.only:
        config = base.model_copy(update={"latent_update": name.partition(",")[0], **UPDATES[name]})
        (phase,) = phases_of(config.model_copy(update={"epochs": 1000}), networks, train)
        state, _ = phase.run(phase.objective.start(weights, data), data, seed)  # compiled
        started = time.perf_counter()
        for _ in range(3):
            state, losses = phase.run(state, data, seed)
            float(losses["loss"])
        seconds = (time.perf_counter() - started) / 3
        assert phase.pace.rounds_per_epoch is not None
        n_epochs = max(1, round(options.seconds / seconds / phase.pace.rounds_per_epoch))
        (phase,) = phases_of(config.model_copy(update={"epochs": n_epochs}), networks, train)
        state = phase.objective.start(weights, data)
        if phase.objective.settle:
            state = phase.objective.settle(state, data, seed)
        elapsed, checks = 0.0, []
        for index in range(phase.pace.n_rounds):
            started = time.perf_counter()
            state, losses = phase.run(state, data, seed)
            terms = {key: round(float(value), 4) for key, value in losses.items()}
            elapsed += time.perf_counter() - started
            if (index + 1) * N_CHECKS // phase.pace.n_rounds > index * N_CHECKS // phase.pace.n_rounds:
                checks.append(check(state.average)["marginal"])
        best = max((value for value in checks if value is not None), default=None)
        found[name] = {"best": best, "last": checks[-1], "epochs": n_epochs, "seconds": elapsed, **terms}
        print(f"{name}: best {best}, last {checks[-1]} after {n_epochs} epochs, {elapsed:.0f} s; {terms}", flush=True)
    print(json.dumps({"run": str(options.run), "seconds": options.seconds, "updates": found}, indent=1))


if __name__ == "__main__":
    main()
