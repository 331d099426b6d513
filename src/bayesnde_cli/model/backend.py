"""TensorFlow without its start-up noise."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from types import ModuleType

# TensorFlow's C++ log: 0 shows everything, 3 fatal errors only.
_LOG_LEVEL, _SILENT = "TF_CPP_MIN_LOG_LEVEL", "3"


def load_tensorflow(*, verbose: bool = False, environ: MutableMapping[str, str] = os.environ) -> ModuleType:
    """The `tensorflow` module; what it writes while starting is shown only if `verbose`, or if it fails.

    A log level that the user has set in the environment is respected.
    """
    if verbose:
        import tensorflow

        return tensorflow
    environ.setdefault(_LOG_LEVEL, _SILENT)
    with _stderr_held_back():
        import tensorflow

        # Devices and the compiler are started at their first use, and both have something to say: let it be now.
        tensorflow.config.list_physical_devices()
        tensorflow.function(lambda x: x + x, jit_compile=True)(tensorflow.constant(1.0))
    return tensorflow


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Keep file descriptor 2 to ourselves, as C++ libraries do not ask Python; what was held comes out on an error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            held.seek(0)
            os.write(2, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
