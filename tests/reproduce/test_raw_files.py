"""The raw files of the experiments: the published ones, fetched from archives that may be wrong or missing."""

import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bayesnde_cli.errors import BadInput
from bayesnde_cli.reproduce import experiments
from bayesnde_cli.reproduce.experiments import EXPERIMENTS, RAW_SETS, RawSet, download, find_files

CATALOGUE = {file: digest for raw in RAW_SETS.values() for file, digest in raw.files.items()}
FILES = ["bank/one.csv", "bank/two.csv"]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _zip(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


class _Report:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_the_catalogue_has_the_hash_of_every_published_file(raw_data: Path) -> None:
    assert {file: _digest((raw_data / file).read_bytes()) for file in CATALOGUE} == CATALOGUE


def test_the_catalogue_and_its_page_have_every_file_of_every_experiment() -> None:
    assert {file for experiment in EXPERIMENTS.values() for file in experiment.files} == CATALOGUE.keys()
    page = Path(__file__).parents[2].joinpath("docs", "raw-files.md").read_text("utf-8")
    for raw in RAW_SETS.values():
        assert f"## {raw.source}\n\n{f'Archive: <{raw.archive}>' if raw.archive else 'No stable address'}" in page
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    assert lines == [f"| `{file}` | `{digest}` |" for file, digest in CATALOGUE.items()]


def test_an_unreadable_raw_file_is_named(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bank").mkdir()
    for file in FILES:
        (tmp_path / file).touch()

    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(experiments, "sha256_file", refuse)
    with pytest.raises(BadInput) as caught:
        find_files(tmp_path, FILES)
    expected = f"error: cannot read {tmp_path}/bank/one.csv\n  Permission denied\nhint: check its permissions"
    assert str(caught.value) == expected


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive of a data set of two files, still to be written."""
    path = tmp_path / "set.zip"
    files = {"bank/one.csv": _digest(b"one"), "bank/two.csv": _digest(b"two")}
    monkeypatch.setitem(RAW_SETS, "bank", RawSet("a set", files, path.as_uri()))
    return path


def test_files_come_from_an_archive_in_an_archive(archive: Path, tmp_path: Path) -> None:
    inner = _zip(**{"folder/one.csv": b"one", "other.txt": b"?"})
    archive.write_bytes(_zip(**{"bank.zip": inner, "extra.zip": _zip(x=b""), "two.csv": b"two"}))
    report = _Report()
    download(tmp_path / "d", FILES, report)  # type: ignore[arg-type]
    assert report.notes == [f"downloading {archive.as_uri()}"]  # once for both
    assert [path.read_bytes() for path in find_files(tmp_path / "d", FILES)] == [b"one", b"two"]
    assert sorted(path.name for path in (tmp_path / "d").rglob("*")) == ["bank", "one.csv", "two.csv"]
    archive.unlink()
    download(tmp_path / "d", FILES, report)  # type: ignore[arg-type]
    assert len(report.notes) == 1  # existing files are not fetched


def _torn(data: bytes) -> bytes:
    """A zip file whose first member cannot be unpacked."""
    start = data.index(b"one.csv") + len(b"one.csv")
    return data[:start] + b"\xff" * 8 + data[start + 8 :]


@pytest.mark.parametrize(
    ("body", "what", "found"),
    [
        (b"<html>moved</html>", "is not a readable zip file", "File is not a zip file"),
        (_zip(**{"one.csv": b"one"})[:-10], "is not a readable zip file", "File is not a zip file"),
        (
            _torn(_zip(**{"one.csv": b"one " * 100})),
            "is not a readable zip file",
            "Error -3 while decompressing data: ",
        ),
        (
            _zip(**{"one.csv": b"one", "two.csv": b"TWO"}),
            "does not hold the published two.csv",
            f"SHA-256 {_digest(b'TWO')}\n  expected {_digest(b'two')}",
        ),
        (
            _zip(**{"two.csv": b"two"}),
            "does not hold the published one.csv",
            f"no file of that name\n  expected {_digest(b'one')}",
        ),
    ],
    ids=["page", "cut", "torn", "other", "without"],
)
def test_an_archive_without_the_published_files_is_refused_and_nothing_is_written(
    body: bytes, what: str, found: str, archive: Path, tmp_path: Path
) -> None:
    archive.write_bytes(body)
    with pytest.raises(BadInput) as caught:
        download(tmp_path / "d", FILES, _Report())  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"error: {archive.as_uri()} {what}\n  {found}")
    assert "\nhint: " in str(caught.value)
    assert not (tmp_path / "d").exists()


def test_without_a_network_the_message_has_a_way_out(
    archive: Path, bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    address = "http://127.0.0.1:1/set.zip"
    monkeypatch.setitem(RAW_SETS, "bank", RAW_SETS["bank"]._replace(archive=address))
    arguments = ["reproduce", "bank", "--download", "--data-dir", tmp_path / "d", "--run", tmp_path / "r", "-q"]
    assert bayesnde(*arguments) == (
        2,
        "",
        f"error: {address} cannot be fetched\n  [Errno 111] Connection refused\n"
        "hint: try again, or get the file another way and name the data folder with --data-dir\n",
    )
    assert not list(tmp_path.iterdir())
