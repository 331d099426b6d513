"""TensorFlow without its start-up noise."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from types import ModuleType
from typing import NamedTuple

from bayesnde_cli.errors import BadUsage

# TensorFlow's C++ log: 0 shows everything, 3 fatal errors only.
_LOG_LEVEL, _SILENT = "TF_CPP_MIN_LOG_LEVEL", "3"


class Backend(NamedTuple):
    """TensorFlow, ready to compute."""

    tensorflow: ModuleType
    device: str  # what the manifest records: `cpu, 2 threads` or `gpu: NVIDIA A40`


def load_tensorflow(
    *,
    verbose: bool = False,
    device: str = "auto",
    threads: int | None = None,
    environ: MutableMapping[str, str] = os.environ,
) -> Backend:
    """TensorFlow on a device; what it writes while starting is shown only if `verbose`, or if it fails.

    `device` is auto, cpu or gpu; a GPU's memory is taken as it is needed. Device and threads are settled at the first
    call of a process, a later one cannot change them. A log level that the user has set in the environment is
    respected.
    """
    if not verbose:
        environ.setdefault(_LOG_LEVEL, _SILENT)
    with contextlib.nullcontext() if verbose else _stderr_held_back():
        import tensorflow

        if not verbose:
            tensorflow.get_logger().addFilter(_is_no_retracing)
        is_there = device != "gpu" or bool(tensorflow.config.list_physical_devices("GPU"))
        name = _settle(tensorflow, device, threads)
        # Devices and the compiler are started at their first use, and both have something to say: let it be now.
        tensorflow.function(lambda x: x + x, jit_compile=True)(tensorflow.constant(1.0))
    if not is_there:
        raise BadUsage(
            "there is no GPU that TensorFlow can use",
            found=f"devices: {', '.join(found.name for found in tensorflow.config.list_physical_devices())}",
            hint="leave --device out, or install `bayesnde[gpu]` on a machine with one",
        )
    return Backend(tensorflow, name)


def _is_no_retracing(record: logging.LogRecord) -> bool:
    """Whether a warning is not about programs that are compiled again: every model and engine has its own."""
    return "tf.function retracing" not in record.getMessage()


def _settle(tensorflow: ModuleType, device: str, threads: int | None) -> str:
    """Choose device and threads; the device's name."""
    config = tensorflow.config
    gpus = config.list_physical_devices("GPU")
    if threads is not None:
        with contextlib.suppress(RuntimeError):  # already at work in this process
            config.threading.set_intra_op_parallelism_threads(threads)
            config.threading.set_inter_op_parallelism_threads(1)
    n_threads = config.threading.get_intra_op_parallelism_threads() or _n_cores()
    if device == "cpu" or not gpus:
        with contextlib.suppress(RuntimeError):
            config.set_visible_devices([], "GPU")
        return f"cpu, {n_threads} {'thread' if n_threads == 1 else 'threads'}"
    with contextlib.suppress(RuntimeError):
        for gpu in gpus:
            config.experimental.set_memory_growth(gpu, True)
    # Products in 10 bits are too coarse for standard deviations of 0.001, and the same run must give the same weights.
    config.experimental.enable_tensor_float_32_execution(False)
    config.experimental.enable_op_determinism()
    details = config.experimental.get_device_details(gpus[0])
    return f"gpu: {details.get('device_name', gpus[0].name)}"


def _n_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Keep file descriptor 2 to ourselves, as C++ libraries do not ask Python; what was held comes out on an error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except Exception:  # and not when the user has stopped us
            os.dup2(kept, 2)
            held.seek(0)
            os.write(2, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
