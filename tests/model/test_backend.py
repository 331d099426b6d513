"""TensorFlow starts silently, and speaks when asked to."""

import os
import subprocess
import sys

import pytest


def _start(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    return subprocess.run([sys.executable, "-c", code], env=clean | environ, capture_output=True, text=True)


def test_tensorflow_starts_without_a_word_and_works() -> None:
    code = (
        "from bayesnde_cli.model.backend import load_tensorflow; tf = load_tensorflow().tensorflow; "
        "f = tf.function(lambda x: tf.reduce_sum(x * x), jit_compile=True); print(float(f(tf.constant([3.0, 4.0]))))"
    )
    done = _start(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "25.0\n", "")


def test_tensorflow_s_own_messages_are_there_for_those_who_ask() -> None:
    done = _start("from bayesnde_cli.model.backend import load_tensorflow; load_tensorflow(verbose=True)")
    assert done.returncode == 0
    assert "oneDNN" in done.stderr


def test_what_was_held_back_comes_out_when_starting_fails() -> None:
    code = (
        "import os\nfrom bayesnde_cli.model.backend import _stderr_held_back\n"
        "with _stderr_held_back():\n    os.write(2, b'a clue\\n')\n    raise RuntimeError('no engine')\n"
    )
    done = _start(code)
    assert done.returncode == 1
    assert done.stderr.startswith("a clue\n")
    assert "no engine" in done.stderr
    stopped = _start(
        code.replace("RuntimeError('no engine')", "Stopped('SIGINT')").replace(
            "import os\n", "import os\nfrom bayesnde_cli.errors import Stopped\n"
        )
    )
    assert "a clue" not in stopped.stderr.splitlines()  # the user knows why
    assert "Stopped: error: stopped by SIGINT" in stopped.stderr


def test_threads_are_settled_before_the_first_computation_and_recorded() -> None:
    code = (
        "from bayesnde_cli.model.backend import load_tensorflow; found = load_tensorflow(device='cpu', threads=1)\n"
        "print(found.device, found.tensorflow.config.threading.get_intra_op_parallelism_threads())"
    )
    done = _start(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cpu, 1 thread 1\n", "")


def test_a_gpu_that_is_not_there_is_said() -> None:
    code = (
        "from bayesnde_cli.errors import BadUsage\nfrom bayesnde_cli.model.backend import load_tensorflow\n"
        "try:\n    load_tensorflow(device='gpu')\nexcept BadUsage as error:\n    print(error)"
    )
    done = _start(code, CUDA_VISIBLE_DEVICES="-1")
    assert done.stdout.startswith("error: there is no GPU that TensorFlow can use\n  devices: /physical_device:CPU:0\n")


@pytest.mark.parametrize(("options", "is_told"), [("", False), ("verbose=True", True)])
def test_many_models_in_one_process_are_no_reason_to_warn(options: str, is_told: bool) -> None:
    done = _start(
        f"from bayesnde_cli.model.backend import load_tensorflow; tf = load_tensorflow({options}).tensorflow\n"
        "program = tf.function(lambda x: x + 1)\n"
        "for n in range(8):\n    program(tf.zeros(n))\n"
        "tf.get_logger().warning('something else')"
    )
    assert ("tf.function retracing" in done.stderr) is is_told
    assert "something else" in done.stderr
