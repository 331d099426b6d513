"""Lines before the table: comments that start with #, and Excel's `sep=;`."""

import codecs
import re

from bayesnde_cli.data.readers.source import Source

MAX_PREAMBLE_BYTES = 1 << 20
_SEPARATOR = re.compile(rb"sep=(.)\s*", re.IGNORECASE)


def preamble_of(source: Source, encoding: str) -> tuple[int, int, str | None]:
    """How many bytes and lines stand before the table, and the separator that they declare, if any.

    Only encodings in which an ASCII character is one byte are looked at.
    """
    if encoding.startswith(("utf-16", "utf-32")):
        return 0, 0, None
    n_bytes, n_lines, separator = 0, 0, None
    with source.open() as stream:
        while n_bytes < MAX_PREAMBLE_BYTES:
            line = stream.readline(MAX_PREAMBLE_BYTES)
            text = line.removeprefix(codecs.BOM_UTF8) if n_lines == 0 else line
            declared = _SEPARATOR.fullmatch(text) if n_lines == 0 else None
            if declared is None and not text.startswith(b"#"):
                break
            separator = declared[1].decode("latin-1") if declared else separator
            n_bytes += len(line)
            n_lines += 1
    return n_bytes, n_lines, separator
