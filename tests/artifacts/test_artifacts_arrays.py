"""Arrays on disk: the same bytes for the same arrays, and damage is named."""

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
    assert facts == {"epoch": 3, "name": "é", "schema_version": 1}
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
        content[content.index(b"NUMPY") + 130] ^= 1  # zip keeps a checksum of every member
    elif damage == "empty":
        content = bytearray()
    path.write_bytes(content)
    if damage == "newer":
        import zipfile

        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("facts.json", '{"schema_version": 2}')
    with pytest.raises(BadArtifact, match="newer" if damage == "newer" else "is damaged"):
        read_arrays(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingArtifact, match="is not there"):
        read_arrays(tmp_path / "state.npz")
