"""The refined model of a run, as the engine takes it."""

import math

import numpy as np
import tensorflow as tf

from bayesnde_cli.artifacts.layout import RunLayout, repair_hint
from bayesnde_cli.artifacts.tables import iter_batches
from bayesnde_cli.errors import BadArtifact
from bayesnde_cli.inference.engine import FittedModel
from bayesnde_cli.model.decoder import BlurredDecoder
from bayesnde_cli.model.networks import NetworkSpec
from bayesnde_cli.rng import bits_at
from bayesnde_cli.stages.weights import read_networks
from bayesnde_cli.training.joint_parameters import decoder_of, encoder_of

# Latents of training rows that chains of other rows may start at.
_N_KNOWN = 1024
# Numbers in the widest layer of all images that a CPU decodes together: more would leave its cache. So, gradients of
# MNIST ran at 40 % of what one core can multiply; of 64 images together, at 31 % (benchmarks/images.py).
_NUMBERS_AT_ONCE = 2**18


def read_model(layout: RunLayout, seed: int, blur: float | None = None) -> FittedModel:
    """The model; the latents that it knows are those of some training rows, chosen by their own random numbers.

    `blur` is a share of sqrt(2 p): rows of p columns of variance 1 are that far apart, in the root mean square.
    """
    stored = read_networks(layout, "refine")
    weights = {name: tf.constant(array) for name, array in stored.weights.items()}
    decoder = decoder_of(stored.decoder, weights)
    return FittedModel(
        decoder=BlurredDecoder(decoder, blur * math.sqrt(2.0 * stored.decoder.n_out)) if blur else decoder,
        latent_dim=stored.decoder.n_in,
        encoder=encoder_of(stored.encoder, weights),
        n_classes=stored.decoder.n_classes,
        known_latents=_known_latents(layout, seed, stored.decoder.n_in),
        n_columns=stored.decoder.n_out,
        latents_at_once=images_at_once(stored.decoder),
    )


def images_at_once(decoder: NetworkSpec) -> int | None:
    """How many images a CPU had best decode together; of tables, and on a GPU, there is no such number."""
    if decoder.image is None or tf.config.get_visible_devices("GPU"):
        return None
    height, width, _ = decoder.image
    return max(1, _NUMBERS_AT_ONCE // (height * width * decoder.width))


def _known_latents(layout: RunLayout, seed: int, latent_dim: int) -> np.ndarray:
    """Some latents of training rows, (n, d) float32; the file is read in batches."""
    bits, z = np.empty(0, np.uint64), np.empty((0, latent_dim), np.float32)
    for batch in iter_batches(layout.latents_file(), "latents", ["row_id", "z_mean"]):
        bits = np.concatenate([bits, bits_at(seed, batch.column("row_id").to_numpy())])
        found = batch.column("z_mean").flatten().to_numpy()
        if found.dtype != np.float32 or found.size != len(batch) * latent_dim:
            raise BadArtifact(
                f"{layout.latents_file()} is damaged",
                found=f"{found.size:,} numbers of type {found.dtype} for {len(batch):,} rows of {latent_dim} latents",
                hint=repair_hint(layout.latents_file()),
            )
        z = np.concatenate([z, found.reshape(-1, latent_dim)])
        chosen = np.argsort(bits, kind="stable")[:_N_KNOWN]
        bits, z = bits[chosen], z[chosen]
    z = z[np.isfinite(z).all(axis=1)]
    _, first = np.unique(z, axis=0, return_index=True)  # rows that repeat: a latent is no peak beside itself
    return z[np.sort(first)]
