"""The program `bayesnde`: how an exception becomes a message and an exit code."""

import errno
import os
import sys

from bayesnde_cli import __version__
from bayesnde_cli.cli.console import Console
from bayesnde_cli.cli.output_closed import OutputClosed
from bayesnde_cli.cli.signals import stopping_on_signals
from bayesnde_cli.cli.status_answer import plain_question
from bayesnde_cli.errors import BayesndeError, Stopped


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of a command line."""
    console = Console()
    try:
        with stopping_on_signals():
            code = _run(arguments, console)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except (BayesndeError, Stopped) as error:
        console.error(str(error))
        return error.exit_code
    except (BrokenPipeError, OutputClosed):
        # The reader of our output has seen enough; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
            return _bug(console)
        console.error(
            f"error: cannot write the output\n  {os.strerror(error.errno)}\nhint: free some space and run again"
        )
        return 2
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of the option parser
            return _usage_error(console, error)
        return _bug(console)


def _run(arguments: list[str], console: Console) -> int:
    # `status` is asked again and again, by people and by loops: its plain forms do not wait for the option parser.
    if question := plain_question(arguments):
        return question.answer(console)
    from bayesnde_cli.cli.commands import run_command

    return run_command(arguments)


def _bug(console: Console) -> int:
    import traceback

    console.error(f"error: this is a bug in bayesnde {__version__}, please report it with what follows")
    traceback.print_exc()
    return 1


def _usage_error(console: Console, error: Exception) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "bayesnde"
    message = error.format_message()  # type: ignore[attr-defined]
    if not message.startswith("Usage:"):
        first = message[0].lower() + message[1:]
        console.error(f"error: {first.rstrip('.')}\nhint: see `{command} --help`")
    else:  # no command given: the message is the help itself
        print(message, file=sys.stderr)
    return 2
