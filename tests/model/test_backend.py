"""TensorFlow starts silently, and speaks when asked to."""

import os
import subprocess
import sys

import pytest

from bayesnde_cli.errors import Stopped
from bayesnde_cli.model.backend import _stderr_held_back

_START = """
from bayesnde_cli.errors import BadUsage
from bayesnde_cli.model.backend import load_tensorflow
try:
    print(load_tensorflow({arguments}).device)
except BadUsage as error:
    print(error)
import tensorflow as tf
program = tf.function(lambda x: tf.reduce_sum(x * x))
for n in range(2, 10):
    program(tf.fill([n], 5.0))
print(tf.config.threading.get_intra_op_parallelism_threads())
tf.get_logger().warning("something else")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("device='cpu', threads=1", "cpu, 1 thread\n1\n"),
        (
            "device='gpu', verbose=True",
            "error: there is no GPU that TensorFlow can use\n  devices: /physical_device:CPU:0\n",
        ),
    ],
)
def test_tensorflow_starts_as_asked_and_is_silent_unless_verbose(arguments: str, told: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    command = [sys.executable, "-c", _START.format(arguments=arguments)]
    done = subprocess.run(command, env=clean | {"CUDA_VISIBLE_DEVICES": "-1"}, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith(told)
    # Every model compiles its own programs, which is no reason for a warning.
    is_verbose = "verbose" in arguments
    assert ("tf.function retracing" in done.stderr) is is_verbose
    assert ("XLA" in done.stderr) is is_verbose
    assert "something else" in done.stderr
    assert is_verbose or len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("error", "told"), [(RuntimeError("no engine"), "a clue\n"), (Stopped("SIGINT"), "")])
def test_held_back_messages_come_out_when_starting_fails_but_not_when_the_user_stops_it(
    error: BaseException, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        with _stderr_held_back():
            os.write(2, b"a clue\n")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert capfd.readouterr().err == told
