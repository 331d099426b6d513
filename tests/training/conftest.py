"""Steps without a compiler."""

from collections.abc import Iterator

import pytest
import tensorflow as tf


@pytest.fixture
def eager() -> Iterator[None]:
    """Compiled functions run eagerly: for a few steps that is faster than compiling."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
