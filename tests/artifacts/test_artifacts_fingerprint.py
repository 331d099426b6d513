"""Hashes do not depend on spelling; names of data sets are always safe."""

import hashlib
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesnde_cli.artifacts.differences import compare
from bayesnde_cli.artifacts.fingerprint import set_name, sha256_file, sha256_json
from bayesnde_cli.artifacts.layout import check_set_name

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
IDENTITIES = st.dictionaries(st.text(max_size=3), VALUES, max_size=4)
FILE_NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=50
).filter(lambda name: name not in (".", ".."))


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path):
    content = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(content)
    assert sha256_file(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_the_hash_of_a_value_ignores_the_order_of_keys():
    assert sha256_json({"a": 1, "b": (2, 3)}) == sha256_json({"b": [2, 3], "a": 1})
    assert sha256_json({"a": 1}) != sha256_json({"a": 1.0})


@pytest.mark.parametrize(
    ("file", "stem"),
    [
        ("digits.csv", "digits"),
        ("digits.csv.gz", "digits"),
        ("my data (v1.2).csv", "my-data-v1.2"),
        ("test.csv", "test"),
        ("..csv", "data"),
        ("数据.csv", "data"),
        ("--help.csv", "help"),
        ("a" * 90 + ".csv", "a" * 31),
    ],
)
def test_a_set_is_named_after_its_file_and_content(tmp_path, file, stem):
    (tmp_path / file).write_bytes(b"x\n1\n")
    digits = hashlib.sha256(b"x\n1\n").hexdigest()[:8]
    assert set_name([tmp_path / file]) == f"{stem}-{digits}"


def test_a_set_of_several_files_depends_on_all_of_them(tmp_path):
    paths = [tmp_path / "images", tmp_path / "labels"]
    for path in paths:
        path.write_bytes(path.name.encode())
    before = set_name(paths)
    paths[1].write_bytes(b"other")
    assert before.startswith("images-")
    assert set_name(paths) != before


@settings(max_examples=60)
@given(name=FILE_NAMES, content=st.binary(max_size=20))
def test_whatever_a_file_is_called_its_set_has_a_safe_name(name, content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        found = set_name([path])
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9a-f]{8}", found)
    assert len(found) <= 40
    assert check_set_name(found) == found


def test_differences_are_listed_with_dotted_keys():
    old = {"scale": "marginal", "model": {"units": (64, 64), "depth": 2}, "inputs": {"data": "a" * 64}, "gone": 2}
    new = {"scale": "standard", "model": {"units": [64], "depth": 2}, "inputs": {"data": "b" * 64}, "new": 1.5}
    assert compare(old, new) == [
        "gone: 2 -> (none)",
        "inputs.data: aaaaaaaaaaaa… -> bbbbbbbbbbbb…",
        "model.units: [64, 64] -> [64]",
        "new: (none) -> 1.5",
        "scale: 'marginal' -> 'standard'",
    ]


def test_values_that_python_takes_for_equal_are_told_apart():
    assert compare({"a": 1, "b": 1, "c": {}}, {"a": True, "b": 1.0}) == [
        "a: 1 -> True",
        "b: 1 -> 1.0",
        "c: {} -> (none)",
    ]


def test_a_setting_that_an_earlier_version_did_not_have_is_no_difference_until_it_is_set():
    assert compare({"settings": {"a": 1}}, {"settings": {"a": 1, "steps": None}}) == []
    assert compare({"settings": {"a": 1, "steps": None}}, {"settings": {"a": 1}}) == []
    assert compare({"settings": {"a": 1}}, {"settings": {"a": 1, "steps": 5}}) == ["settings.steps: (none) -> 5"]
    assert compare({"a": 0}, {}) == ["a: 0 -> (none)"]


@given(old=IDENTITIES, new=IDENTITIES)
def test_two_identities_differ_exactly_if_the_hashes_of_what_is_set_do(old, new):
    assert compare(old, old) == []
    assert (compare(old, new) == []) == (sha256_json(_set(old)) == sha256_json(_set(new)))
    assert len(compare(old, new)) == len(compare(new, old))


def _set(values):
    """What is not None, at every depth where `compare` goes into both."""
    return {
        key: _set(value) if isinstance(value, dict) else value for key, value in values.items() if value is not None
    }
