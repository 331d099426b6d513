"""Inputs are recognised by content, refused by name where they are not tables, and concatenated."""

import ast
import gzip
import inspect
import io
import os
import threading
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_reading import opened, opened_text, read, refusal, text_refusal

from bayesnde_cli.errors import BadInput
from bayesnde_cli.tables import sources, text_files
from bayesnde_cli.tables.sources import describe_sources, open_sources, sources_of

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_files_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal("sub/a\x1b[31m.csv").startswith("error: sub/a\\x1b[31m.csv does not exist\n  no such file in sub\n")
    Path("a.csv").write_text("a\n1\n")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert refusal("a.csv") == "error: cannot read a.csv\n  Permission denied\nhint: check the file's permissions"


def test_a_file_that_vanishes_after_it_was_opened() -> None:
    Path("a.csv").write_text("a\n1\n")
    found = sources_of([Path("a.csv")])
    Path("a.csv").unlink()
    for use in (lambda: describe_sources(found, [Path("a.csv")]), lambda: open_sources(found)):
        with pytest.raises(BadInput) as caught:
            use()
        expected = "error: cannot read a.csv\n  No such file or directory\nhint: check the file's permissions"
        assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (b"MATLAB 7.3" + bytes(600), "a MATLAB v7.3 file (HDF5)", "save it in MATLAB with `save(file, '-v7')`"),
        (b"\xd0\xcf\x11\xe0" + bytes(99), "an Excel workbook", "save the sheet as CSV"),
        (b"BZh91AY", "a bzip2 file", "unpack it first, or compress it with gzip, which can be read directly"),
    ],
)
def test_unsupported_formats_are_refused_by_name(content: bytes, what: str, hint: str) -> None:
    assert text_refusal(content) == f"error: a.csv is {what}\n  first bytes: {content[:8]!r}\nhint: {hint}"


def test_damaged_zip_files_and_a_gzip_around_a_binary_format() -> None:
    np.savez("a.npz", x=np.ones(9))
    Path("a.npz").write_bytes(Path("a.npz").read_bytes()[:100])
    assert refusal("a.npz").startswith("error: a.npz is a truncated or damaged zip file")
    with zipfile.ZipFile("a.npz", "w"):
        pass
    assert refusal("a.npz").startswith("error: a.npz is a zip file without arrays\n  inside: nothing\n")
    np.save("a.npy", np.ones((2, 2)))
    Path("a.npy.gz").write_bytes(gzip.compress(Path("a.npy").read_bytes()))
    assert refusal("a.npy.gz").startswith("error: a.npy.gz is a gzip-compressed npy file\n")


def test_the_extension_does_not_matter() -> None:
    np.save("a.npy", np.ones((2, 3)))
    Path("a.npy").rename("a.csv")
    assert opened("a.csv").description == "NPY, 2 x 3 float64"


def test_standard_input_can_be_read_twice_and_its_copy_is_deleted_with_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = open_sources(sources_of(["-"], stdin=io.BytesIO(b"a,b\n1,x\n2,y\n")))
    assert read(table) == read(table) == {"a": [1, 2], "b": ["x", "y"]}
    assert len(list(tmp_path.iterdir())) == 1
    del table
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match="standard input is empty"):
        sources_of(["-"], stdin=io.BytesIO())
    assert list(tmp_path.iterdir()) == []


def test_a_named_pipe_is_read_like_a_file() -> None:
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(b"a\n1\n2\n"))
    writer.start()
    table = opened("pipe")
    writer.join()
    assert read(table) == {"a": [1, 2]}


@pytest.mark.parametrize("module", [sources, text_files])
def test_readers_of_other_formats_are_imported_only_when_such_a_file_is_read(module: ModuleType) -> None:
    imports = [
        node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {word for node in imports for word in ast.unparse(node).replace(",", " ").replace(".", " ").split()}
    assert names & {"arff_files", "binary_files", "scipy", "PIL", "parquet"} == set()


def test_an_input_larger_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(sources, "_CGROUP_LIMIT", limit)
    without = sources.available_memory()
    limit.write_text("max\n")
    assert sources.available_memory() == without
    limit.write_text("1000000000\n")
    with pytest.raises(BadInput) as caught:
        sources.check_memory("a.mat", 2 * 10**9, hint="save less")
    assert str(caught.value) == (
        "error: a.mat does not fit into memory\n  at least 2.0 GB needed, 1.0 GB available\nhint: save less"
    )
    sources.check_memory("a.mat", 10**9, hint="save less")


def test_columns_of_several_files_are_matched_by_name_in_any_order() -> None:
    table = opened_text("a,b\n1,x\n", "b;a\ny;2\n")
    assert read(table) == {"a": [1, 2], "b": ["x", "y"]}
    assert table.description == "2 files: CSV, separated by ',', header, utf-8; CSV, separated by ';', header, utf-8"


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (["1 2\n", "3,4\n"], {"c1": [1, 3], "c2": [2, 4]}),
        (["a,b\n1,2\n", "3,4\n"], {"a": [1, 3], "b": [2, 4]}),
        (["a,n\nx,1\n", "a,n\n7,1\n"], {"a": ["x", "7"], "n": [1, 1]}),
        (["a,n\n,1\n", "a,n\nx,1\n"], {"a": [None, "x"], "n": [1, 1]}),
    ],
    ids=["by position", "names of the first", "text in the first", "first file that has a cell"],
)
def test_several_files_are_one_table(contents: list[str], expected: dict[str, list]) -> None:
    assert read(opened_text(*contents)) == expected


def test_formats_may_be_mixed() -> None:
    pq.write_table(pa.table({"b": ["y"], "a": [2]}), "b.parquet")
    Path("a.csv").write_text("a,b\n1,x\n")
    assert read(opened("a.csv", "b.parquet"), as_text=["a"]) == {"a": ["1", "2"], "b": ["x", "y"]}


@pytest.mark.parametrize(
    ("contents", "what", "found"),
    [
        (["a,b\n1,x\n", "a,b\n1,x\n", "a,c,d\n1,x,y\n"], "c.csv has different columns from a.csv", "missing: b"),
        (["1,2\n", "1,2,3\n"], "b.csv has different columns from a.csv", "2 columns, and 3 columns without names"),
        (["1,2\n", "a,b\n1,2\n"], "b.csv has different columns from a.csv", "2 columns, and 2 columns with names"),
        (["a\n1\n", "a\nx\n"], "column 'a' holds text in b.csv and numbers in an earlier file", "type: text"),
    ],
)
def test_files_that_do_not_fit_together(contents: list[str], what: str, found: str) -> None:
    assert text_refusal(*contents).startswith(f"error: {what}\n  {found}\n")
