"""Files of a few bytes that ask for more than there is: refused by what they declare, before it is taken."""

import gzip
import io
import resource
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

import parquet_bombs
from bayesnde_cli.data.readers import open_table
from bayesnde_cli.errors import BadInput

_ZEROS = bytes(4 << 20)  # which deflate packs to a thousandth
_MOST_KILOBYTES = 300 << 10  # more memory than such a file may take
_AS_CSV = "if it is what it seems to be, write the table as CSV"


@pytest.fixture
def _little_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at from a mebibyte on, and not only from a thousand."""
    monkeypatch.setattr("bayesnde_cli.headers.unpacked.FREE_BYTES", 1 << 20)


def message(name: str, content: bytes, folder: Path) -> str:
    """What is said of a file with this content, read as a whole."""
    path = folder / name
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadInput) as caught:
        for _ in open_table([path]).batches():
            pass
    assert caught.value.exit_code == 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MOST_KILOBYTES
    return str(caught.value).replace(f"{folder}/", "")


def npy(descr: str, shape: tuple[int, ...], data: bytes) -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def mat(sizes: tuple[int, ...], n_bytes: int, *, is_packed: bool) -> bytes:
    """A matrix of doubles that declares so much and holds nothing."""
    body = (
        struct.pack("<4I", 6, 8, 6, 0) + struct.pack("<2I", 5, 4 * len(sizes)) + struct.pack(f"<{len(sizes)}i", *sizes)
    )
    body += struct.pack("<2I", 1, 1) + b"X".ljust(8, b"\0") + struct.pack("<2I", 9, n_bytes)
    element = struct.pack("<2I", 14, len(body) + n_bytes) + body
    if is_packed:
        packed = zlib.compress(element)
        element = struct.pack("<2I", 15, len(packed)) + packed
    return b"MATLAB 5.0 MAT-file".ljust(124, b" ") + b"\x00\x01IM" + element


@pytest.mark.parametrize("value", [1.5, "word"], ids=["numbers", "words"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_parquet_file_of_a_million_million_rows_in_a_few_thousand_bytes(
    value: float | str, is_packed: bool, tmp_path: Path
) -> None:
    bomb = parquet_bombs.repeated(10**12, value, is_packed=is_packed)
    assert message("a.parquet", bomb, tmp_path) == (
        "error: a.parquet unpacks to far more than its size\n"
        f"  {len(bomb):,} bytes become 8,000,000,000,000 or more, over 10,000 times as many\n"
        f"hint: {_AS_CSV}"
    )


def test_a_parquet_file_of_few_rows_of_one_value_is_no_bomb(tmp_path: Path) -> None:
    """The control: it is the number that is refused, not the way in which it is written."""
    (tmp_path / "a.parquet").write_bytes(parquet_bombs.repeated(10**5))
    assert sum(batch.num_rows for batch in open_table([tmp_path / "a.parquet"]).batches()) == 10**5


@pytest.mark.usefixtures("_little_is_free")
def test_a_gzip_file_that_unpacks_without_end(tmp_path: Path) -> None:
    told = message("a.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * (len(_ZEROS) // 4), 9, mtime=0), tmp_path)
    assert told.startswith("error: a.csv.gz unpacks to far more than its size\n  ")
    assert told.endswith(
        " or more, over 250 times as many\n"
        "hint: if it is what it seems to be, unpack it with `gunzip` and give the result"
    )


@pytest.mark.usefixtures("_little_is_free")
def test_an_npz_file_that_unpacks_without_end(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy("<f8", (len(_ZEROS) // 16, 2), _ZEROS))
    told = message("a.npz", buffer.getvalue(), tmp_path)
    assert told.startswith("error: a.npz unpacks to far more than its size\n  ")
    assert told.endswith("hint: if it is what it seems to be, save the arrays with `np.savez`, which packs nothing")


def test_a_mat_file_that_unpacks_without_end(tmp_path: Path) -> None:
    told = message("a.mat", mat((10**7, 50), 4 * 10**9, is_packed=True), tmp_path)
    assert told.startswith("error: a.mat unpacks to far more than its size\n  ")
    assert " bytes become 4,000,000,000 or more, over 250 times as many\n" in told


@pytest.mark.parametrize("sizes", [(10**9, 10**9), (-1, 3), (3,), (2**31 - 1, 2**31 - 1, 2**31 - 1)])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_mat_matrix_of_absurd_sizes(sizes: tuple[int, ...], is_packed: bool, tmp_path: Path) -> None:
    told = message("a.mat", mat(sizes, 24, is_packed=is_packed), tmp_path)
    assert told.startswith("error: a.mat is a truncated or damaged MAT file\n  ")


@pytest.mark.parametrize("shape", [(2**62, 2**62), (2**40, 3), (10**15,)])
def test_an_npy_array_of_an_absurd_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    content = npy("<f8", shape, bytes(64))
    needed = len(content) - 64 + 8 * int(np.prod(np.array(shape, object)))
    assert message("a.npy", content, tmp_path) == (
        "error: a.npy is a truncated or damaged NPY file\n"
        f"  {len(content)} bytes instead of {needed}\n"
        "hint: copy or download the file again"
    )


def test_more_columns_than_any_model_has(tmp_path: Path) -> None:
    assert message("a.npy", npy("|u1", (1, 100_001), bytes(100_001)), tmp_path) == (
        "error: a.npy has too many columns\n"
        "  100,001 columns, 100,000 are the most\n"
        "hint: if rows and columns are swapped, transpose the table; else give the columns that matter"
    )


def test_more_arrays_than_any_table_has(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **{f"x{number}": np.zeros(3) for number in range(501)})
    assert message("a.npz", buffer.getvalue(), tmp_path) == (
        "error: a.npz holds too many arrays\n"
        "  501 arrays, 500 are the most\n"
        "hint: save the rows as one array of (rows, columns)"
    )


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_idx_file_of_absurd_sizes(pack, tmp_path: Path) -> None:
    told = message(
        "a.idx", pack(struct.pack(">4B3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(40)), tmp_path
    )
    assert told.startswith("error: a.idx is a truncated or damaged IDX file\n  ")


def test_memory_that_this_machine_does_not_have_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix that lies column by column is read whole."""
    array = np.asfortranarray(np.zeros((1000, 1000)))
    np.save(tmp_path / "a.npy", array)
    monkeypatch.setattr("bayesnde_cli.data.readers.bounds.memory_bytes", lambda: 10**6)
    assert message("a.npy", (tmp_path / "a.npy").read_bytes(), tmp_path) == (
        "error: a.npy does not fit into memory\n"
        "  0.0 GB are needed at least, 0.0 GB are there\n"
        "hint: save it row by row, with `np.ascontiguousarray(array)`: it is then read in pieces"
    )
