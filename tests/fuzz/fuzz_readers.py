"""Targets of the fuzz campaign: every format that `prepare` and `density` read."""

import functools
import io
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_mutations import (
    SIZES,
    WORDS,
    damaged,
    mat_files,
    npy_files,
    packed_files,
    parquet_files,
    text_files,
    zip_files,
)
from hypothesis import strategies as st

from bayesnde_cli.data.readers import open_table
from damages import npy_bytes, zipped

N_ROWS = 12
_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(N_ROWS, 3))
CSV = ("a,b,k\n" + "".join(f"{a:.3f},{b:.3f},{'uv'[n % 2]}\n" for n, (a, b, _) in enumerate(_X))).encode()
SPACED = "\n".join("  ".join([f"{a:.2f}", f'"{b:.2f}"', "w"]) for a, b, _ in _X).encode()
ARFF = (b"@relation r\n% c\n@attribute a numeric\n@attribute 'b c' real\n@attribute k {u,'v w'}\n@data\n") + b"".join(
    f"{a:.2f},{b:.2f},{word}\n".encode() for (a, b, _), word in zip(_X, ["u", "'v w'"] * 6, strict=True)
)
IDX = bytes([0, 0, 8, 3]) + struct.pack(">3I", N_ROWS, 2, 2) + bytes(4 * N_ROWS)
NPZ = zipped(
    {"x.npy": npy_bytes(_X), "y.npy": npy_bytes(np.arange(N_ROWS)), "t.npy": npy_bytes(np.array(["u"] * N_ROWS))}
)


def read(path: Path) -> None:
    """All of a file: its numbers, and everything as words."""
    table = open_table([path])
    for _ in table.batches():
        pass
    for _ in table.batches(table.names[:3], as_text=table.names[:3]):
        pass


@functools.cache
def mat(is_packed: bool) -> bytes:
    from scipy.io import savemat

    buffer = io.BytesIO()
    variables = {"X": _X, "y": np.arange(N_ROWS), "s": {"a": 1}, "c": np.array(["u", 1.0], object), "w": "text"}
    savemat(buffer, variables, do_compression=is_packed)
    return buffer.getvalue()


@functools.cache
def parquet(**options: object) -> bytes:
    table = pa.table({"a": _X[:, 0], "n": np.arange(N_ROWS), "k": ["u", "v"] * 6, "m": [None, 1.5] * 6})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


_TYPES = [
    pa.int8(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.bool_(),
    pa.null(),
    pa.large_string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("ns"),
    pa.duration("s"),
    pa.decimal128(20, 3),
    pa.decimal256(60, 3),
    pa.list_(pa.int8()),
    pa.struct([("s", pa.int8())]),
    pa.map_(pa.string(), pa.int8()),
    pa.dictionary(pa.int8(), pa.string()),
    pa.list_(pa.float32(), 2),
    pa.time64("us"),
    pa.string(),
]


@st.composite
def odd_tables(draw: st.DrawFn) -> bytes:
    """Parquet files of any types and names, whole or damaged."""
    names = draw(st.lists(st.sampled_from([*WORDS, "a.b", "b", "c"]), min_size=1, max_size=4))
    kinds = [draw(st.sampled_from(_TYPES)) for _ in names]
    n_rows = draw(st.integers(0, 4))
    columns = [pa.nulls(n_rows, kind) for kind in kinds]
    options = draw(
        st.sampled_from([{}, {"data_page_version": "2.0"}, {"compression": "gzip"}, {"store_schema": False}])
    )
    buffer = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_arrays(columns, names), buffer, **options)
    except (pa.ArrowException, UnicodeError):  # nobody can write that
        return draw(damaged(parquet()))
    return draw(st.one_of(st.just(buffer.getvalue()), parquet_files(buffer.getvalue())))


@st.composite
def idx_files(draw: st.DrawFn) -> bytes:
    """IDX files whose header lies."""
    n_axes = draw(st.integers(0, 9))
    sizes = [draw(st.one_of(st.integers(0, 5), st.sampled_from(SIZES))) % 2**32 for _ in range(n_axes)]
    head = bytes([0, 0, draw(st.sampled_from([8, 9, 11, 12, 13, 14, 7])), n_axes])
    return head + struct.pack(f">{n_axes}I", *sizes) + bytes(draw(st.integers(0, 400)))


_PARQUETS = [parquet(), parquet(use_dictionary=False, compression="zstd")]
TARGETS: dict[str, st.SearchStrategy[bytes]] = {
    "csv": text_files(CSV),
    "white space": text_files(SPACED),
    "csv.gz": packed_files(text_files(CSV)),
    "arff": text_files(ARFF),
    "idx": st.one_of(damaged(IDX), idx_files()),
    "idx.gz": packed_files(st.one_of(damaged(IDX), idx_files())),
    "npy": npy_files(npy_bytes(_X)),
    "npz": zip_files(NPZ),
    "mat": st.deferred(lambda: st.one_of(mat_files(mat(True)), mat_files(mat(False)))),
    "parquet": st.one_of(*map(parquet_files, _PARQUETS), odd_tables()),
}
