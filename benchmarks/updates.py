"""Compare the latent updates of `refine` at equal wall time, from one warm start, on validation rows.

    python benchmarks/updates.py RUN [--seconds 120] [--seed 0]

RUN is a run directory with `prepare` and `warmstart` done; nothing in it is changed. Each update gets as many epochs as
fit into the time, by the pace of its first rounds; compilation, burn-in and looks are not counted. Prints the mean
validation log-density (units of the file) of the start, and of every update the best look and the last.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.config import RefineConfig
from bayesnde_cli.model.backend import load_tensorflow

N_LOOKS = 8  # at the validation rows; `refine` would keep the best
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
    from bayesnde_cli.stages.training.fitting import _model
    from bayesnde_cli.stages.training.looks import Judge
    from bayesnde_cli.stages.training.phases import phases_of
    from bayesnde_cli.stages.training.rows import read_rows

    layout = RunLayout(options.run)
    base = RefineConfig(seed=options.seed, validation_draws=256)
    train = read_rows(layout, "train")
    x, y = train.tensors()
    networks, weights = _model(layout, base, train.x.shape[1], train.n_classes)
    seed = tf.constant(options.seed)
    judge = Judge(base, networks, read_rows(layout, "validation"))
    found: dict[str, dict[str, object]] = {"start": {"best": judge(weights)["marginal"]}}
    print(f"start: {found['start']['best']}", flush=True)
    for name in options.only:
        config = replace(base, latent_update=name.partition(",")[0], **UPDATES[name])  # type: ignore[arg-type]
        (phase,) = phases_of(replace(config, epochs=1000), networks, train)
        state, _ = phase.run(phase.start(weights), x, y, seed)  # compiled
        started = time.perf_counter()
        for _ in range(3):
            state, losses = phase.run(state, x, y, seed)
            float(losses["loss"])
        seconds = (time.perf_counter() - started) / 3
        assert phase.rounds_per_epoch is not None
        n_epochs = max(1, round(options.seconds / seconds / phase.rounds_per_epoch))
        (phase,) = phases_of(replace(config, epochs=n_epochs), networks, train)
        state = phase.start(weights)
        if phase.settle:
            state = phase.settle(state, x, y, seed)
        elapsed, looks = 0.0, []
        for index in range(phase.n_rounds):
            started = time.perf_counter()
            state, losses = phase.run(state, x, y, seed)
            terms = {key: round(float(value), 4) for key, value in losses.items()}
            elapsed += time.perf_counter() - started
            if (index + 1) * N_LOOKS // phase.n_rounds > index * N_LOOKS // phase.n_rounds:
                looks.append(judge(state.average)["marginal"])
        best = max((look for look in looks if look is not None), default=None)
        found[name] = {"best": best, "last": looks[-1], "epochs": n_epochs, "seconds": elapsed, **terms}
        print(f"{name}: best {best}, last {looks[-1]} after {n_epochs} epochs, {elapsed:.0f} s; {terms}", flush=True)
    print(json.dumps({"run": str(options.run), "seconds": options.seconds, "updates": found}, indent=1))


if __name__ == "__main__":
    main()
