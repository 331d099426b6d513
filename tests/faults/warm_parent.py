"""A process that has imported everything and forks one for each command line: a victim starts in milliseconds.

Run as `python warm_parent.py`. It reads a request a line, as JSON, and answers with a line: `start` gives a process id,
`wait` an exit code. It waits only when asked, so that an id stays that of its victim.
"""

import functools
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
    from bayesnde_cli.cli.commands import COMMANDS
    from bayesnde_cli.model.backend import _stderr_held_back

    with _stderr_held_back():
        import tensorflow  # noqa: F401  (imported, not yet started: what has threads cannot be forked)
    for command in COMMANDS:
        importlib.import_module(f"bayesnde_cli.cli.{command}")
    for module in ("fit", "status", "training.fitting", "training.writing", "scoring.engine", "evaluate.fitted_model"):
        importlib.import_module(f"bayesnde_cli.stages.{module}")


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

    from bayesnde_cli.cli.main import ignore_signals, run

    steps = file_operations.Steps(**request["mishap"])
    file_operations.watch(os.path.abspath("run"), steps)
    code = run(request["arguments"])
    ignore_signals()  # as `main` does
    Path(f"steps-{pid}").write_text("\n".join(steps.done))
    return code


def _engine(**options: Any) -> None:
    import fake_engine

    fake_engine.install(**options)


def _model(seconds: float = 0.0) -> None:
    """The fake model in `evaluate`, and in `fit`, whose default was bound when it was defined."""
    import time

    import pytest

    import fake_model
    from bayesnde_cli.stages import evaluate, fit

    fake_model.install(pytest.MonkeyPatch(), fake_model.NormalModel())

    def opened(*args: Any, **options: Any) -> fake_model.NormalModel:
        time.sleep(seconds)
        return fake_model.NormalModel()

    fit.run_evaluate = functools.partial(evaluate.run_evaluate, models=opened)  # type: ignore[assignment]


def _training(**options: Any) -> None:
    import fake_training

    fake_training.install(**options)


def _clock(seconds: float, per_second: float = 0.0) -> None:
    """A clock that is wrong by so many seconds, and by so many more with each second that goes by."""
    import time
    from datetime import UTC, datetime

    from bayesnde_cli.artifacts import claims, environment

    now, started = time.time, time.time()
    time.time = lambda: now() + seconds + per_second * (now() - started)  # type: ignore[assignment]

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromtimestamp(time.time(), tz or UTC)

    environment.datetime = claims.datetime = Shifted  # type: ignore[misc]


def _user(uid: int) -> None:
    """Somebody else, who may not do what root may."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def _torn_writes() -> None:
    """The negative control: files are written in their places, and a kill may leave half of one."""
    import contextlib
    from collections.abc import Iterator

    from bayesnde_cli.artifacts import atomic, tables

    @contextlib.contextmanager
    def writing(path: Path) -> Iterator[Path]:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path

    @contextlib.contextmanager
    def writing_once(path: Path) -> Iterator[atomic.Draft]:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield atomic.Draft(path, is_published=True)

    atomic.writing = tables.writing = writing
    tables.writing_once = writing_once


STAND_INS = {
    "engine": _engine,
    "model": _model,
    "training": _training,
    "clock": _clock,
    "user": _user,
    "torn writes": _torn_writes,
}

if __name__ == "__main__":
    main()
