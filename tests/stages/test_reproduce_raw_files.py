"""The raw files of the experiments: the published ones, fetched from a server that may be wrong or not there."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bayesnde_cli.errors import BadInput
from bayesnde_cli.stages.reproduce import downloading, raw_files
from bayesnde_cli.stages.reproduce.downloading import download
from bayesnde_cli.stages.reproduce.experiments import EXPERIMENTS
from bayesnde_cli.stages.reproduce.raw_files import RAW_SETS, RawSet, found_files

CATALOGUE = [(file, digest) for raw in RAW_SETS.values() for file, digest in raw.files.items()]


class _Report:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(("file", "digest"), CATALOGUE, ids=[file for file, _ in CATALOGUE])
def test_the_catalogue_has_the_hash_of_the_published_file(file: str, digest: str, raw_data: Path) -> None:
    assert hashlib.sha256((raw_data / file).read_bytes()).hexdigest() == digest


def test_the_catalogue_has_every_file_of_every_experiment_and_no_other() -> None:
    used = {file for experiment in EXPERIMENTS.values() for file in experiment.files}
    assert used == {file for file, _ in CATALOGUE}


def test_the_page_of_raw_files_has_all_of_them() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "raw-files.md").read_text("utf-8")
    for raw in RAW_SETS.values():
        assert f"## {raw.source}\n\n{f'Archive: <{raw.archive}>' if raw.archive else 'No stable address'}" in page
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    assert lines == [f"| `{file}` | `{digest}` |" for file, digest in CATALOGUE]


def test_published_files_are_found_in_the_order_of_the_experiment(raw_data: Path) -> None:
    files = EXPERIMENTS["pendigits10"].files
    assert found_files(raw_data, files) == [raw_data / file for file in files]


def _zip(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, bytes]]]:
    """An HTTP server of this machine, and what it has, by path."""
    pages: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", pages
        http.shutdown()
        thread.join()


@pytest.fixture
def two_files(server: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, bytes]]:
    """A data set of two files at that server; the archive is still to be put there."""
    address, pages = server
    files = {"bank/one.csv": _digest(b"one"), "bank/two.csv": _digest(b"two")}
    monkeypatch.setitem(raw_files.RAW_SETS, "bank", RawSet("a set", files, f"{address}/set.zip"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return address, pages


def _refusal(folder: Path) -> BadInput:
    with pytest.raises(BadInput) as caught:
        download(folder, ["bank/one.csv", "bank/two.csv"], _Report())  # type: ignore[arg-type]
    assert not folder.exists()
    return caught.value


def test_files_come_from_an_archive_in_an_archive(two_files: tuple, tmp_path: Path) -> None:
    address, pages = two_files
    inner = _zip(**{"folder/one.csv": b"one", "other.txt": b"?"})
    pages["/set.zip"] = _zip(**{"bank.zip": inner, "extra.zip": _zip(x=b""), "two.csv": b"two"})
    report = _Report()
    download(tmp_path / "d", ["bank/one.csv", "bank/two.csv"], report)  # type: ignore[arg-type]
    assert report.notes == [f"downloading {address}/set.zip"]  # once for both
    assert [path.read_bytes() for path in found_files(tmp_path / "d", ["bank/one.csv", "bank/two.csv"])] == [
        b"one",
        b"two",
    ]
    assert sorted(path.name for path in (tmp_path / "d").rglob("*")) == ["bank", "one.csv", "two.csv"]
    pages.clear()
    download(tmp_path / "d", ["bank/one.csv"], report)  # type: ignore[arg-type]
    assert len(report.notes) == 1  # what is there is not fetched


def test_a_file_with_another_content_is_refused_and_nothing_is_written(two_files: tuple, tmp_path: Path) -> None:
    address, pages = two_files
    pages["/set.zip"] = _zip(**{"one.csv": b"one", "two.csv": b"TWO"})
    assert str(_refusal(tmp_path / "d")) == (
        f"error: {address}/set.zip does not hold the published two.csv\n"
        f"  SHA-256 {_digest(b'TWO')}\n"
        f"  expected SHA-256 {_digest(b'two')}\n"
        f"hint: the archive may have changed: get the file elsewhere, and put it at {tmp_path}/d/bank/two.csv"
    )


def test_an_archive_without_the_file_is_refused(two_files: tuple, tmp_path: Path) -> None:
    address, pages = two_files
    pages["/set.zip"] = _zip(**{"two.csv": b"two"})
    assert str(_refusal(tmp_path / "d")) == (
        f"error: {address}/set.zip does not hold the published one.csv\n"
        "  nothing of that name\n"
        f"  expected SHA-256 {_digest(b'one')}\n"
        f"hint: the archive may have changed: get the file elsewhere, and put it at {tmp_path}/d/bank/one.csv"
    )


def _torn(data: bytes) -> bytes:
    """A zip file whose first member cannot be unpacked."""
    place = data.index(b"one.csv") + len(b"one.csv")
    return data[:place] + b"\xff" * 8 + data[place + 8 :]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"<html>moved</html>", "File is not a zip file"),
        (_zip(**{"one.csv": b"one"})[:-10], "File is not a zip file"),
        (_torn(_zip(**{"one.csv": b"one " * 100, "two.csv": b"two"})), "Error -3 while decompressing data: "),
    ],
    ids=["page", "cut", "torn"],
)
def test_what_is_no_archive_is_refused(body: bytes, found: str, two_files: tuple, tmp_path: Path) -> None:
    address, pages = two_files
    pages["/set.zip"] = body
    what, reason, hint = str(_refusal(tmp_path / "d")).splitlines()
    assert (what, hint) == (f"error: {address}/set.zip is no archive that can be read", "hint: get it by hand")
    assert reason.startswith(f"  {found}")


def test_an_archive_that_is_too_large_is_refused(
    two_files: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, pages = two_files
    monkeypatch.setattr(downloading, "_MOST_BYTES", 1000)
    pages["/set.zip"] = b"x" * 1001
    assert str(_refusal(tmp_path / "d")) == (
        f"error: {address}/set.zip is larger than it can be\n  more than 1,000 bytes\nhint: get it by hand"
    )
    pages["/set.zip"] = _zip(**{"one.csv": b"0" * 5000})
    assert len(pages["/set.zip"]) < 1000
    assert str(_refusal(tmp_path / "d")) == (
        f"error: {address}/set.zip is no archive that can be read\n  it unpacks to more than it can\n"
        "hint: get it by hand"
    )


@pytest.mark.parametrize(
    ("address", "found"),
    [("{server}/none.zip", "Not Found"), ("http://127.0.0.1:1/set.zip", "[Errno 111] Connection refused")],
)
def test_without_a_network_the_message_has_a_way_out(
    address: str, found: str, two_files: tuple, bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = address.format(server=two_files[0])
    monkeypatch.setitem(raw_files.RAW_SETS, "bank", raw_files.RAW_SETS["bank"]._replace(archive=where))
    data_dir = tmp_path / "d"
    arguments = ["reproduce", "bank", "--download", "--data-dir", data_dir, "--run", tmp_path / "r", "-q"]
    assert bayesnde(*arguments) == (
        2,
        "",
        f"error: {where} cannot be fetched\n  {found}\n"
        "hint: try again, or get the file by another way and say with --data-dir where it is\n",
    )
    assert not list(tmp_path.iterdir())
