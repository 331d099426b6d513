"""A process that has imported everything and forks one for each command line: a victim starts in milliseconds.

Run as `python warm_parent.py`. It reads a request a line, as JSON, and answers with a line: `start` gives a process id,
`wait` an exit code. It waits only when asked, so that an id stays that of its victim.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> None:
    _import_everything()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "start":
            answer = {"pid": _start(request)}
        else:
            answer = {"code": os.waitstatus_to_exitcode(os.waitpid(request["pid"], 0)[1])}
        print(json.dumps(answer), flush=True)


def _import_everything() -> None:
    import importlib

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from bayesnde_cli.cli.main import COMMANDS, command
    from bayesnde_cli.model.backend import _stderr_held_back

    with _stderr_held_back():
        import tensorflow  # noqa: F401  (imported, not yet started: what has threads cannot be forked)
    for name in COMMANDS:
        command(name)
    for module in ("fit", "status", "train", "loading", "posterior_draws"):
        importlib.import_module(f"bayesnde_cli.stages.{module}")
    # What they import when they come to it.
    for name in (
        "bayesnde_cli.inference.class_screen",
        "bayesnde_cli.inference.engine",
        "bayesnde_cli.report.collect",
        "jinja2",
        "matplotlib.figure",
        "matplotlib.backends.backend_svg",
        "pytest",
    ):
        importlib.import_module(name)


def _start(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        code = _live(request)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _live(request: dict[str, Any]) -> int:
    os.setsid()
    # A campaign that was started by nohup, or in the background, may ignore these; a victim shall not. Until bayesnde
    # listens they end it, without a traceback of ours.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.chdir(request["folder"])
    pid, new = os.getpid(), os.O_WRONLY | os.O_CREAT
    streams = ((os.devnull, os.O_RDONLY), (f"out-{pid}", new), (f"err-{pid}", new))
    for descriptor, (name, flags) in enumerate(streams):
        os.dup2(os.open(name, flags, 0o644), descriptor)
    for name in request["stand_ins"]:
        STAND_INS[name](**request["stand_ins"][name])
    import file_operations

    from bayesnde_cli import stopping
    from bayesnde_cli.cli.main import run

    steps = file_operations.Steps(**request["mishap"])
    file_operations.watch(os.path.abspath("run"), steps)
    code = run(request["arguments"])
    stopping.ignore()  # as `main` does
    Path(f"steps-{pid}").write_text("\n".join(steps.done))
    return code


def _engine(**options: Any) -> None:
    import fake_engine

    fake_engine.install(**options)


def _model() -> None:
    import fake_model
    from bayesnde_cli.stages import loading

    loading.open_model = lambda *args, **options: fake_model.NormalModel()  # type: ignore[assignment]


def _training(**options: Any) -> None:
    import fake_training

    fake_training.install(**options)


def _torn_writes() -> None:
    """The negative control: files are written in their places, and a kill may leave half of one."""
    import contextlib
    from collections.abc import Callable, Iterator

    from bayesnde_cli.runs import files, parquet_files

    @contextlib.contextmanager
    def writing(path: Path) -> Iterator[Path]:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path

    def write_once(path: Path, write: Callable[[Path], object]) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        return True

    files.writing = parquet_files.writing = writing
    parquet_files.write_once = write_once


STAND_INS = {
    "engine": _engine,
    "model": _model,
    "training": _training,
    "torn writes": _torn_writes,
}

if __name__ == "__main__":
    main()
