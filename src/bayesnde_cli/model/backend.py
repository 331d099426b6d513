"""TensorFlow without its start-up noise, and with random numbers that are fast once compiled."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from bayesnde_cli.errors import BadUsage

if TYPE_CHECKING:
    import tensorflow as tf


class Backend(NamedTuple):
    """TensorFlow, configured and started."""

    tensorflow: ModuleType
    device: str  # as recorded in the manifest: `cpu, 2 threads` or `gpu: NVIDIA A40`


def load_tensorflow(*, verbose: bool = False, device: str = "auto", threads: int | None = None) -> Backend:
    """Import and start TensorFlow on a device: auto, cpu or gpu. The first call of a process decides.

    Its start-up messages are shown only if `verbose`, or if it fails. A log level set in the environment is respected.
    """
    if not verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # fatal errors only
    with contextlib.nullcontext() if verbose else _stderr_held_back():
        import tensorflow

        if not verbose:
            # Every model and engine compiles its own programs, which TensorFlow takes for a mistake.
            tensorflow.get_logger().addFilter(lambda record: "tf.function retracing" not in record.getMessage())
        gpus = tensorflow.config.list_physical_devices("GPU")
        name = _configure(tensorflow, gpus if device != "cpu" else [], threads)
        # Devices and the compiler write messages at their first use: trigger them while stderr is held back.
        tensorflow.function(lambda x: x + x, jit_compile=True)(tensorflow.constant(1.0))
    if device == "gpu" and not gpus:
        raise BadUsage(
            "there is no GPU that TensorFlow can use",
            found=f"devices: {', '.join(found.name for found in tensorflow.config.list_physical_devices())}",
            hint="leave --device out, or install `bayesnde[gpu]` on a machine with one",
        )
    return Backend(tensorflow, name)


def _configure(tensorflow: ModuleType, gpus: Sequence[Any], threads: int | None) -> str:
    """Set device and threads, as far as TensorFlow has not started in this process, and return the device's name."""
    config = tensorflow.config
    if threads is not None:
        with contextlib.suppress(RuntimeError):
            config.threading.set_intra_op_parallelism_threads(threads)
            config.threading.set_inter_op_parallelism_threads(1)
    if not gpus:
        with contextlib.suppress(RuntimeError):
            config.set_visible_devices([], "GPU")
        n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        n_threads = config.threading.get_intra_op_parallelism_threads() or n_cores
        return f"cpu, {n_threads} {'thread' if n_threads == 1 else 'threads'}"
    with contextlib.suppress(RuntimeError):
        for gpu in gpus:
            config.experimental.set_memory_growth(gpu, True)
    # Products of 10 bits are too coarse for standard deviations of 0.001, and equal runs must give equal weights.
    config.experimental.enable_tensor_float_32_execution(False)
    config.experimental.enable_op_determinism()
    details = config.experimental.get_device_details(gpus[0])
    return f"gpu: {details.get('device_name', gpus[0].name)}"


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Capture file descriptor 2, as C++ libraries bypass `sys.stderr`; on an error, print what was captured."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except Exception:  # but not when the user interrupts
            os.dup2(kept, 2)
            held.seek(0)
            os.write(2, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


# Random numbers by address: the same seed (two int32) gives the same numbers. Compiled by XLA for a CPU, TensorFlow's
# default generator takes longer than the networks: 3 million normal numbers took 2.0 s, and 0.06 s with threefry
# (Salmon et al. 2011). Outside XLA there is no threefry, so numbers depend on whether a function is compiled.
_is_outside_xla = False


@contextlib.contextmanager
def outside_xla() -> Iterator[None]:
    """For graphs that are traced here and will not be compiled."""
    global _is_outside_xla
    before, _is_outside_xla = _is_outside_xla, True
    try:
        yield
    finally:
        _is_outside_xla = before


def seed_pair(seed: int) -> "tf.Tensor":
    """The two int32 that stand for a 62-bit seed."""
    import tensorflow as tf

    return tf.constant([seed % 2**31, seed // 2**31 % 2**31], tf.int32)


def normal(shape: Sequence[int], seed: "tf.Tensor", **options: Any) -> "tf.Tensor":
    """Standard normal numbers."""
    return _random("stateless_normal", shape, seed, **options)


def uniform(shape: Sequence[int], seed: "tf.Tensor", **options: Any) -> "tf.Tensor":
    """Uniform numbers: on [0, 1), or from `minval` to `maxval`."""
    return _random("stateless_uniform", shape, seed, **options)


def _random(function: str, shape: Sequence[int], seed: "tf.Tensor", **options: Any) -> "tf.Tensor":
    import tensorflow as tf

    algorithm = "auto_select" if tf.executing_eagerly() or _is_outside_xla else "threefry"
    return getattr(tf.random, function)(shape, seed, alg=algorithm, **options)
