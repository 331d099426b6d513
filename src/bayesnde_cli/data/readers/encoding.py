"""Which encoding a text source has."""

import codecs

from bayesnde_cli.data.readers.source import Source
from bayesnde_cli.errors import BadInput

CHUNK_BYTES = 1 << 20
TRIED_BYTES = 64 << 20  # past this, a byte that is not UTF-8 is an error rather than a hint at cp1252
FALLBACK = "cp1252"

BYTE_ORDER_MARKS: tuple[tuple[bytes, str], ...] = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(source: Source, wanted: str | None) -> str:
    """The wanted encoding if there is one, else that of the byte order mark, else UTF-8 or cp1252."""
    if wanted is not None:
        return _known(wanted)
    with source.open() as stream:
        chunk = stream.read(CHUNK_BYTES)
        for mark, encoding in BYTE_ORDER_MARKS:
            if chunk.startswith(mark):
                return encoding
        decoder = codecs.getincrementaldecoder("utf-8")()
        n_read = 0
        while chunk and n_read < TRIED_BYTES:
            n_read += len(chunk)
            following = stream.read(CHUNK_BYTES)
            try:
                decoder.decode(chunk, final=not following)
            except UnicodeDecodeError:
                return FALLBACK
            chunk = following
    return "utf-8"


def _known(encoding: str) -> str:
    try:
        "x".encode(encoding)  # refuses codecs that are no text encodings, such as rot13
        return codecs.lookup(encoding).name
    except (LookupError, UnicodeError) as error:
        raise BadInput(
            f"unknown encoding {encoding!r}",
            found="encodings go by names such as utf-8, latin-1, cp1252, utf-16",
            hint="set `--encoding` to one of them, or leave it out",
        ) from error
