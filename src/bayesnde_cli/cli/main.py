"""The program `bayesnde`: how an exception becomes a message and an exit code.

Little is imported up here: signals are listened to before the rest is loaded.
"""

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

from bayesnde_cli import __version__
from bayesnde_cli.cli.output_closed import OutputClosed
from bayesnde_cli.cli.signals import StopRequest, ignore_signals, stopping_on_signals
from bayesnde_cli.errors import BayesndeError, Stopped

if TYPE_CHECKING:
    from bayesnde_cli.cli.console import Console


def main() -> None:
    """Run the command line and exit."""
    code = run(sys.argv[1:])
    ignore_signals()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of a command line."""
    try:
        with stopping_on_signals() as request:
            try:
                return _answered(arguments, request)
            except Stopped as stopped:
                return _told(stopped)
    except Stopped as stopped:  # as the listening began or ended
        return _told(stopped)


def _told(stopped: Stopped) -> int:
    from bayesnde_cli.cli.console import Console

    Console().error(str(stopped))
    return stopped.exit_code


def _answered(arguments: list[str], request: StopRequest) -> int:
    from bayesnde_cli.cli.console import Console

    console = Console()
    try:
        code = _run(arguments, console)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except Exception as error:
        if request.stopped:  # a library has made something else of it on the way
            raise request.stopped from error
        return _explained(error, arguments, console)


def _explained(error: Exception, arguments: list[str], console: "Console") -> int:
    """Say what went wrong; the exit code."""
    if isinstance(error, BayesndeError):
        console.error(str(error))
        return error.exit_code
    if isinstance(error, BrokenPipeError | OutputClosed):
        # The reader of our output has seen enough; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, OSError) and _is_of_output(error):
        assert error.errno is not None
        console.error(
            f"error: cannot write the output\n  {os.strerror(error.errno)}\nhint: free some space and run again"
        )
        return 2
    if hasattr(error, "format_message"):  # a usage error of the option parser
        return _usage_error(console, error, arguments)
    return _bug(console)


def _is_of_output(error: OSError) -> bool:
    """Whether a write to stdout failed: a file of ours would be named."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) and error.filename is None


def _run(arguments: list[str], console: "Console") -> int:
    # `status` is asked again and again, by people and by loops: its plain forms do not wait for the option parser.
    from bayesnde_cli.cli.status_answer import plain_question

    if question := plain_question(arguments):
        return question.answer(console)
    from bayesnde_cli.cli.commands import run_command

    return run_command(arguments)


def _bug(console: "Console") -> int:
    import traceback

    console.error(f"error: this is a bug in bayesnde {__version__}, please report it with what follows")
    traceback.print_exc()
    return 1


def _usage_error(console: "Console", error: Any, arguments: list[str]) -> int:
    message = error.format_message()
    if message.startswith("Usage:"):  # no command given: the message is the help itself
        print(message, file=sys.stderr)
    else:
        from bayesnde_cli.cli.usage_errors import usage_error

        console.error(str(usage_error(error, arguments)))
    return 2
