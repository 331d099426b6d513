"""A small run that is complete, every file of it written by our own writers, with stand-ins for engine and networks."""

from pathlib import Path

import numpy as np
import pyarrow as pa

import fake_engine
import fake_model
from bayesnde_cli.runs.files import write_arrays
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import Manifest, describe_outputs
from bayesnde_cli.runs.parquet_files import Stamp, write_table
from bayesnde_cli.stages import loading

# Two blocks of the test rows.
DRAWS = ["--block-rows", "32", "--draws", "4", "--chains", "2"]
SMALL = [*DRAWS, "--method", "bridge"]
FEW = ["--generated-rows", "60", "--typicality-rows", "60", "--no-baselines", "--accuracy-rows", "0"]
_N_ROWS, _N_LATENT = 600, 2


def whole_run(folder: Path, *, seed: int = 0, is_evaluated: bool = True) -> Path:
    """A run in `folder`: all stages on the test rows, and `density` on the file `new.csv` next to it."""
    from bayesnde_cli.cli.main import run

    rng = np.random.default_rng(seed)
    lines = [
        f"{rng.normal():.6f},{rng.gamma(2.0):.6f},{rng.poisson(4)},{'uv'[rng.integers(0, 2)]}" for _ in range(_N_ROWS)
    ]
    (folder / "d.csv").write_text("\n".join(["a,b,n,k", *lines]) + "\n")
    (folder / "new.csv").write_text("\n".join(["a,b,n,k", *lines[:20]]) + "\n")
    where = ["--run", str(folder / "run"), "-q"]
    fake_engine.install()
    assert run(["prepare", str(folder / "d.csv"), "--condition", "k", "--scale", "marginal", *where]) == 0
    for stage, reads in (("warmstart", "prepare/train.parquet"), ("refine", "warmstart/weights/model.npz")):
        _trained(RunLayout(folder / "run"), stage, reads, rng)
    assert run(["posterior", *DRAWS, *where]) == 0
    assert run(["density", *SMALL, *where]) == 0
    assert run(["density", str(folder / "new.csv"), *SMALL, *where]) == 0
    if is_evaluated:
        assert run(["evaluate", *FEW, *where]) == 0
    return folder / "run"


def _trained(layout: RunLayout, stage: str, reads: str, rng: np.random.Generator) -> None:
    """What a training stage leaves, filled with random numbers."""
    prepared = Manifest.read(layout.manifest_file("prepare"))
    names = [layout.history_file(stage), layout.selection_file(stage), layout.weights_file(stage)]
    steps = {"phase": ["elbo"] * 3, "epoch": [1.0, 2.0, 3.0], "step": [10, 20, 30]}
    tables = {"history": pa.table({**steps, "loss": rng.normal(size=3)})}
    looks = {"is_chosen": [False, True, False], "marginal": rng.normal(size=3), "marginal_se": [0.1] * 3}
    tables["selection"] = pa.table({**steps, **looks})
    if stage == "refine":
        names.append(layout.latents_file())
        z = rng.normal(size=(_N_ROWS, _N_LATENT)).astype(np.float32)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(z.ravel()), _N_LATENT)
        tables["latents"] = pa.table({"row_id": np.arange(_N_ROWS), "z_mean": lists, "z_sd": lists})
    for path in names:
        if path.stem in tables:
            write_table(path, tables[path.stem], Stamp(path.stem, prepared.run_id))
    arrays, facts = small_networks(rng)
    write_arrays(layout.weights_file(stage), arrays, {**facts, "run_id": prepared.run_id})
    upstream, _, output = reads.partition("/")
    recorded = Manifest.read(layout.manifest_file(upstream)).outputs[output]
    Manifest(
        stage=stage,
        set_name=None,
        run_id=prepared.run_id,
        identity={"settings": {}, "inputs": {}},
        config={"select": "marginal", "depth": 1, "width": 4},
        seed=0,
        inputs={reads: {**recorded, "path": reads}},
        outputs=describe_outputs(layout.stage_dir(stage), names),
        device="cpu",
        started="",
    ).write(layout.manifest_file(stage))


def small_networks(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict]:
    """Weights of a decoder and an encoder of one layer, for three columns and two classes, and what they look like."""
    n_features, n_classes, width = 3, 2, 4
    sizes = {"decoder": (_N_LATENT, n_features), "encoder": (n_features, _N_LATENT)}
    heads = {"decoder": ("mean", "variance"), "encoder": ("mean", "sd")}
    arrays, facts = {}, {}
    for network, (n_in, n_out) in sizes.items():
        layers = {"hidden1": (n_in + n_classes, width)} | dict.fromkeys(heads[network], (width + n_classes, n_out))
        for layer, shape in layers.items():
            arrays[f"{network}/{layer}/kernel"] = rng.normal(size=shape).astype(np.float32)
            arrays[f"{network}/{layer}/bias"] = np.zeros(shape[1], np.float32)
        facts[network] = {
            "n_in": n_in,
            "n_out": n_out,
            "heads": list(heads[network]),
            "n_classes": n_classes,
            "kind": "mlp",
            "width": width,
            "depth": 1,
            "activation": "leaky_relu",
        }
    return arrays, facts


def install(monkeypatch: object) -> None:
    """Have all commands open stand-ins, until the test ends."""
    import linear_model

    monkeypatch.setattr(loading, "open_engine", loading.open_engine)  # type: ignore[attr-defined]
    monkeypatch.setattr(loading, "open_prior", loading.open_prior)  # type: ignore[attr-defined]
    linear_model.install()
    fake_engine.install()
    fake_model.install(monkeypatch, fake_model.NormalModel())  # type: ignore[arg-type]
