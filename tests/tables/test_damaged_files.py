"""Files of the user damaged at random, from fixed seeds: each is read, or refused with an error of ours."""

import gzip
import io
import random
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
from PIL import Image

from bayesnde_cli.errors import BadInput
from bayesnde_cli.tables.sources import open_sources, sources_of

N_FILES = 30  # of each kind
X = np.random.default_rng(0).normal(size=(12, 3))
TOKENS = [",;\t |\"'\n\r#%{}\\\0\ufeff\u2028", "NA", "nan", "1e999", "é", "sep=;", "@data", "@attribute", "x" * 300]
CSV = "a,b,k\n" + "".join(f"{a:.3f},{b:.3f},{'uv'[n % 2]}\n" for n, (a, b, _) in enumerate(X))
SPACED = "\n".join("  ".join([f"{a:.2f}", f'"{b:.2f}"', "w"]) for a, b, _ in X)
ARFF = "@relation r\n% c\n@attribute a numeric\n@attribute 'b c' real\n@attribute k {u,'v w'}\n@data\n" + "".join(
    f"{a:.2f},{b:.2f},{word}\n" for (a, b, _), word in zip(X, ["u", "'v w'"] * 6, strict=True)
)
IDX = bytes([0, 0, 8, 3]) + struct.pack(">3I", 12, 2, 2) + bytes(48)

Damage = Callable[[bytes, random.Random], bytes]


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """One to four changes: bits flipped, bytes set, cut, repeated, inserted, numbers replaced, the end cut off."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randint(0, len(data)), rng.randint(1, 64)
        number = rng.choice([0, 1, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1])
        changes = [
            (at, at + 1, bytes([byte ^ 1 << size % 8 for byte in data[at : at + 1]])),
            (at, at + 1, rng.choice([b"\0", b"\n", b'"', b"\x80", b"\xff"])),
            (at, at + 4, number.to_bytes(4, rng.choice(["little", "big"]))),
            (at, at + size, b""),
            (at, len(data), b""),
            (at, at, bytes(data[at : at + size]) * rng.choice([1, 50])),
            (at, at, rng.randbytes(16)),
        ]
        start, stop, new = rng.choice(changes)
        data[start:stop] = new
    return bytes(data)


def damage_text(content: bytes, rng: random.Random) -> bytes:
    """Bytes damaged, or tokens put in, in some encoding."""
    if rng.random() < 0.3:
        return damage_bytes(content, rng)
    text = content.decode()
    for _ in range(rng.randint(1, 6)):
        at, token = rng.randint(0, len(text)), rng.choice(TOKENS)
        text = text[:at] + (rng.choice(token) if token == TOKENS[0] else token) + text[at + rng.randint(0, 3) :]
    return text.encode(rng.choice(["utf-8", "utf-8", "utf-16", "latin-1"]), "replace")


def damage_gzip(content: bytes, rng: random.Random) -> bytes:
    inner = gzip.decompress(content)
    return damage_bytes(content, rng) if rng.random() < 0.5 else gzip.compress(damage_bytes(inner, rng))


def damage_zip(content: bytes, rng: random.Random) -> bytes:
    """The archive damaged, or one of its members."""
    if rng.random() < 0.3:
        return damage_bytes(content, rng)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    hit = rng.choice(list(members))
    members[hit] = damage_bytes(members[hit], rng)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def damage_mat(content: bytes, rng: random.Random) -> bytes:
    """The compressed bytes of the first variable damaged, or the end cut off: SciPy crashes on tags that are wrong."""
    if rng.random() < 0.5:
        return content[: rng.randint(20, len(content))]
    n_bytes = int.from_bytes(content[132:136], "little")
    at = rng.randint(136, 135 + n_bytes)
    return content[:at] + bytes([content[at] ^ 1 << rng.randint(0, 7)]) + content[at + 1 :]


def damage_parquet(content: bytes, rng: random.Random) -> bytes:
    """The footer damaged, or the file."""
    if rng.random() < 0.5:
        return damage_bytes(content, rng)
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = damage_bytes(content[start:-8], rng)
    return content[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


ARROW = pa.table({"a": X[:, 0], "n": np.arange(12), "k": ["u", "v"] * 6, "m": [None, 1.5] * 6})
VARIABLES = {"X": X, "y": np.arange(12), "s": {"a": 1}, "c": np.array(["u", 1.0], object), "w": "text"}
FILES: dict[str, tuple[bytes, Damage]] = {
    "csv": (CSV.encode(), damage_text),
    "white space": (SPACED.encode(), damage_text),
    "csv.gz": (gzip.compress(CSV.encode(), mtime=0), damage_gzip),
    "arff": (ARFF.encode(), damage_text),
    "idx": (IDX, damage_bytes),
    "idx.gz": (gzip.compress(IDX, mtime=0), damage_gzip),
    "npy": (written(lambda file: np.save(file, X)), damage_bytes),
    "npz": (written(lambda file: np.savez(file, x=X, y=np.arange(12), t=np.array(["u"] * 12))), damage_zip),
    "mat": (written(lambda file: scipy.io.savemat(file, VARIABLES, do_compression=True)), damage_mat),
    "parquet": (written(lambda file: pq.write_table(ARROW, file)), damage_parquet),
    "folder/a.png": (written(lambda file: Image.new("RGB", (4, 3), "red").save(file, "PNG")), damage_bytes),
}


def read(name: str) -> None:
    """Read a whole file, as what it holds and as text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, about odd headers
        table = open_sources(sources_of([Path(name).parent if "/" in name else Path(name)]))
        for as_text in ((), table.names[:3]):
            for _ in table.batches(table.names[:3] if as_text else None, as_text=as_text):
                pass


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_read_or_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    content, damage = FILES[name]
    Path(name).write_bytes(content)
    read(name)  # otherwise all files would be refused for the same reason
    rng = random.Random(name)
    n_refused = 0
    for _ in range(N_FILES):
        Path(name).write_bytes(damage(content, rng))
        try:
            read(name)
        except BadInput:
            n_refused += 1
    assert n_refused > 0
