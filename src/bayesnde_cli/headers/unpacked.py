"""How far a packed file may unpack before it is taken for a trap."""

# Up to here a packed file may unpack to what it likes, and beyond to so many times its size. Tables of text and
# numbers pack to a tenth, very regular ones to a hundredth; deflate can go to a thousandth, Parquet beyond all bounds.
FREE_BYTES = 1 << 30
MAX_RATIO = 250
# A cell of a Parquet column of few values takes a bit or less, and eight bytes when it is read.
MAX_CELL_RATIO = 10_000


def is_too_far(n_packed: int, n_unpacked: int, ratio: int = MAX_RATIO) -> bool:
    """Whether so many bytes cannot honestly come out of so few."""
    return n_unpacked > max(FREE_BYTES, ratio * n_packed)
