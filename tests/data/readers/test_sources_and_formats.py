"""What is given as a file: recognised by content, refused by name where it is no table."""

import gzip
import io
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bayesnde_cli.data.readers import open_table
from bayesnde_cli.errors import BadInput


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def message(*names: str, stdin: io.BytesIO | None = None) -> str:
    with pytest.raises(BadInput) as caught:
        list(open_table([Path(name) for name in names], stdin=stdin).batches())
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_file_that_is_not_there() -> None:
    assert message("nothing.csv") == (
        "error: nothing.csv does not exist\n  no such file in the working directory\nhint: check the path"
    )


def test_a_directory() -> None:
    Path("folder").mkdir()
    assert message("folder") == (
        "error: folder is a directory without images\n  files: none\n"
        "hint: give the files inside it, or a folder of PNG, JPEG, BMP, PGM or PPM images"
    )


def test_an_empty_file() -> None:
    Path("a.csv").touch()
    assert message("a.csv") == "error: a.csv is empty\n  0 bytes\nhint: give a file that holds a table"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission() -> None:
    Path("a.csv").write_text("a\n1\n")
    Path("a.csv").chmod(0)
    assert message("a.csv") == ("error: cannot read a.csv\n  Permission denied\nhint: check the file's permissions")


def test_a_file_that_the_system_refuses_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.csv").write_text("a\n1\n")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert message("a.csv") == ("error: cannot read a.csv\n  Permission denied\nhint: check the file's permissions")


def test_control_characters_of_a_file_name_are_spelled_out() -> None:
    assert message("a\x1b[31m.csv").startswith("error: a\\x1b[31m.csv does not exist\n")


def test_no_file_at_all() -> None:
    assert message() == "error: no file to read\n  an empty list of files\nhint: give a file, or - for a pipe"


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (
            b"MATLAB 7.3 MAT-file" + bytes(600),
            "a MATLAB v7.3 file (HDF5)",
            "save it in MATLAB with `save(file, '-v7')`",
        ),
        (b"\x89HDF\r\n\x1a\n" + bytes(99), "an HDF5 file", "export the table as CSV or Parquet"),
        (b"%PDF-1.7\n", "a PDF document", "export the table as CSV or Parquet"),
        (b"\xd0\xcf\x11\xe0" + bytes(99), "an Excel workbook", "save the sheet as CSV"),
        (b"BZh91AY", "a bzip2 file", "unpack it first, or compress with gzip, which is read as it is"),
    ],
)
def test_foreign_formats_are_refused_by_name(content: bytes, what: str, hint: str) -> None:
    Path("a.csv").write_bytes(content)
    assert message("a.csv") == f"error: a.csv is {what}\n  first bytes: {content[:8]!r}\nhint: {hint}"


def test_an_excel_workbook() -> None:
    with zipfile.ZipFile("a.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "")
    assert message("a.xlsx") == (
        "error: a.xlsx is an Excel workbook\n  inside: 'xl/workbook.xml'\nhint: save the sheet as CSV"
    )


def test_a_zip_of_something_else() -> None:
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("data.csv", "a\n1\n")
    assert message("a.zip") == (
        "error: a.zip is a zip file without arrays\n  inside: 'data.csv'\nhint: unzip it and give the files inside it"
    )


def test_a_truncated_zip() -> None:
    np.savez("a.npz", x=np.ones(9))
    Path("a.npz").write_bytes(Path("a.npz").read_bytes()[:100])
    assert message("a.npz") == (
        "error: a.npz is a truncated or damaged zip file (NPZ, Excel or other)\n"
        "  File is not a zip file\n"
        "hint: copy or download the file again"
    )


def test_truncated_gzip() -> None:
    Path("a.csv.gz").write_bytes(gzip.compress(b"a,b\n" + os.urandom(999).hex().encode())[:-20])
    assert message("a.csv.gz") == (
        "error: a.csv.gz is a truncated or damaged gzip file\n"
        "  Compressed file ended before the end-of-stream marker was reached\n"
        "hint: copy or download the file again"
    )


def test_a_gzip_around_a_binary_format() -> None:
    np.save("a.npy", np.ones((2, 2)))
    Path("a.npy.gz").write_bytes(gzip.compress(Path("a.npy").read_bytes()))
    assert message("a.npy.gz") == (
        "error: a.npy.gz is a gzip-compressed npy file\n"
        "  gzip is read around text, ARFF and IDX only\n"
        "hint: unpack it with `gunzip`"
    )


def test_the_extension_plays_no_part() -> None:
    np.save("a.npy", np.ones((2, 3)))
    Path("a.npy").rename("a.csv")
    assert open_table([Path("a.csv")]).description == "NPY, 2 x 3 float64"


def test_standard_input_is_spooled_and_can_be_read_twice() -> None:
    table = open_table(["-"], stdin=io.BytesIO(b"a,b\n1,x\n2,y\n"))
    assert (
        [batch.to_pydict() for batch in table.batches()]
        == [{"a": [1, 2], "b": ["x", "y"]}]
        == [batch.to_pydict() for batch in table.batches()]
    )


def test_the_spool_of_standard_input_is_removed_with_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spool))
    table = open_table(["-"], stdin=io.BytesIO(b"a\n1\n"))
    assert len(list(spool.iterdir())) == 1
    del table
    assert list(spool.iterdir()) == []


def test_empty_standard_input() -> None:
    assert message("-", stdin=io.BytesIO()) == (
        "error: standard input is empty\n  0 bytes\nhint: give a file that holds a table"
    )


def test_standard_input_twice() -> None:
    assert message("-", "-") == "error: standard input is given twice\n  - and -\nhint: give - once"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a POSIX thing")
def test_a_named_pipe_is_read_like_a_file() -> None:
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(b"a\n1\n2\n"))
    writer.start()
    table = open_table([Path("pipe")])
    writer.join()
    assert [batch.to_pydict() for batch in table.batches()] == [{"a": [1, 2]}]


def test_the_import_is_light() -> None:
    heavy = "{'scipy', 'sklearn', 'pandas', 'tensorflow'}"
    code = f"import sys, bayesnde_cli.data.readers; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
