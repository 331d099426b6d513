"""A standard stream that does not stop the work when nobody reads it any more."""

import errno
import os
from typing import Any, TextIO

# A log on a full disk is no reason to stop; a result that cannot be written is.
_OF_LOGS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)


class PatientStream:
    """A stream that leads nowhere once its reader has gone away, as `| head` does, or its terminal was closed."""

    def __init__(self, stream: TextIO, *, is_log: bool) -> None:
        self._stream = stream
        # Now: a terminal that is gone says that it is none.
        self._forgiven = (errno.EPIPE, *(_OF_LOGS if is_log else (errno.EIO,) if stream.isatty() else ()))

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lead_nowhere(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lead_nowhere(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lead_nowhere(self, error: OSError) -> None:
        if error.errno not in self._forgiven:
            raise error
        # By descriptor: what is still in a buffer is written again, at the end of the process at the latest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
