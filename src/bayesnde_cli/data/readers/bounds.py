"""What a file may ask for: columns, bytes when unpacked, memory. Asked before anything is taken."""

from bayesnde_cli.errors import BadInput
from bayesnde_cli.headers.memory import memory_bytes
from bayesnde_cli.headers.unpacked import MAX_RATIO, is_too_far

# Networks of this many inputs are beyond any machine that we know.
MAX_COLUMNS = 100_000


def refuse_columns(name: str, n_columns: int) -> None:
    """Refuse a table wider than any model: before as many names are made."""
    if n_columns > MAX_COLUMNS:
        raise BadInput(
            f"{name} has too many columns",
            found=f"{n_columns:,} columns, {MAX_COLUMNS:,} are the most",
            hint="if rows and columns are swapped, transpose the table; else give the columns that matter",
        )


def refuse_bomb(name: str, n_packed: int, n_unpacked: int, *, hint: str, ratio: int = MAX_RATIO) -> None:
    """Refuse a file that unpacks to far more than any table does."""
    if is_too_far(n_packed, n_unpacked, ratio):
        raise BadInput(
            f"{name} unpacks to far more than its size",
            found=f"{n_packed:,} bytes become {n_unpacked:,} or more, over {ratio:,} times as many",
            hint=hint,
        )


def refuse_memory(name: str, n_bytes: int, *, hint: str) -> None:
    """Refuse what this machine cannot hold."""
    available = memory_bytes()
    if n_bytes > available:
        raise BadInput(
            f"{name} does not fit into memory",
            found=f"{_gigabytes(n_bytes)} are needed at least, {_gigabytes(available)} are there",
            hint=hint,
        )


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB"
