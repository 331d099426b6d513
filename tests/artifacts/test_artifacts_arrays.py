"""Arrays on disk: the same bytes for the same arrays, and damage is named."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from bayesnde_cli.artifacts.arrays import read_arrays, write_arrays
from bayesnde_cli.errors import BadArtifact, MissingArtifact

ARRAYS = {
    "decoder/dense1/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "step": np.array(7, np.int32),
    "latents": np.linspace(-1, 1, 5),
}


def test_arrays_and_facts_come_back_as_they_were(tmp_path: Path) -> None:
    write_arrays(tmp_path / "state.npz", ARRAYS, {"epoch": 3, "name": "é"})
    arrays, facts = read_arrays(tmp_path / "state.npz")
    assert facts == {"epoch": 3, "name": "é", "schema_version": 2}
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)
    # Any reader of NumPy's own format opens it, too.
    assert np.array_equal(np.load(tmp_path / "state.npz")["latents"], ARRAYS["latents"])


def test_equal_arrays_give_equal_bytes_whatever_their_order(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a", ARRAYS, {})
    write_arrays(tmp_path / "b", dict(reversed(ARRAYS.items())), {})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_arrays(tmp_path / "c", ARRAYS | {"step": np.array(8, np.int32)}, {})
    assert (tmp_path / "c").read_bytes() != (tmp_path / "a").read_bytes()


def test_objects_are_never_pickled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_arrays(tmp_path / "a", {"x": np.array([{}], object)}, {})
    assert list(tmp_path.iterdir()) == []
    np.savez(tmp_path / "b.npz", x=np.array([{}], object))
    with pytest.raises(BadArtifact):
        read_arrays(tmp_path / "b.npz")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "newer"])
def test_damage_is_named(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    write_arrays(path, ARRAYS, {})
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        content = content[:-50]
    elif damage == "flipped":
        content[content.index(b"NUMPY") + 130] ^= 1
    elif damage == "empty":
        content = bytearray()
    path.write_bytes(content)
    if damage == "newer":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("facts.json", '{"schema_version": 3}')
    with pytest.raises(BadArtifact, match="newer" if damage == "newer" else "is damaged"):
        read_arrays(path)


def test_not_a_bit_can_be_flipped_unseen(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    write_arrays(path, {"a": np.arange(3.0)}, {"epoch": 1})
    content = path.read_bytes()
    for bit in np.random.default_rng(0).choice(8 * len(content), 400, replace=False):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(BadArtifact):
            read_arrays(path)


def test_weights_from_before_there_were_digests_are_read(tmp_path: Path) -> None:
    _zipped(tmp_path / "a.npz", {"facts.json": b'{"schema_version": 1}', "x.npy": _npy((3,), "<f8", 24)})
    arrays, facts = read_arrays(tmp_path / "a.npz")
    assert (arrays["x"].tolist(), facts) == ([0.0, 0.0, 0.0], {"schema_version": 1})


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ({"facts.json": b"[" * 100_000}, "maximum recursion depth exceeded while decoding a JSON array"),
        ({"facts.json": b'{"schema_version": 0}'}, "schema_version is 0"),
        ({"facts.json": b'{"schema_version": 2}'}, "it does not say what its SHA-256 is"),
        ({"x.npy": b""}, "There is no item named 'facts.json'"),
        (
            {"facts.json": b'{"schema_version": 1}', "x.npy": lambda: _npy((10**15,), "<f8", 24)},
            "x.npy is not an array of float64 (1000000000000000,) in 152 bytes",
        ),
        (
            {"facts.json": b'{"schema_version": 1}', "x.npy": lambda: _npy((3,), "|O", 24)},
            "x.npy is not an array of object (3,) in 152 bytes",
        ),
    ],
)
def test_what_no_writer_of_ours_makes_is_damaged(members: dict, found: str, tmp_path: Path) -> None:
    made = {name: content() if callable(content) else content for name, content in members.items()}
    _zipped(tmp_path / "a.npz", made)
    with pytest.raises(BadArtifact) as caught:
        read_arrays(tmp_path / "a.npz")
    assert found in caught.value.found[0]


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("facts.json", '{"schema_version": 1}')
        archive.writestr("x.npy", _npy((100_000,), "<f8", 800_000))
    with pytest.raises(BadArtifact) as caught:
        read_arrays(tmp_path / "a.npz")
    assert caught.value.found == ("a member is packed",)


def _npy(shape: tuple, dtype: str, n_bytes: int) -> bytes:
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(n_bytes)


def _zipped(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingArtifact, match="is not there"):
        read_arrays(tmp_path / "state.npz")
