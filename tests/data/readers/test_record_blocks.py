"""Text cut into blocks of whole records, wherever the chunks happen to end."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesnde_cli.data.readers.text_stream import (
    EndlessRecord,
    RecordLayout,
    one_tab_between,
    record_blocks,
    whole_lines,
)


def records(text: str) -> list[list[str]]:
    lines = io.StringIO(text, newline=None)
    return [record for record in csv.reader(lines) if record]


def chunks_of(text: str, sizes: list[int]) -> list[str]:
    chunks = []
    for size in sizes:
        chunks.append(text[:size])
        text = text[size:]
    return [chunk for chunk in (*chunks, text) if chunk]


def blocks_and_open_record(chunks: list[str]) -> tuple[list[str], str]:
    blocks: list[str] = []
    try:
        blocks.extend(block.decode() for block in record_blocks(iter(chunks), RecordLayout(",", '"')))
    except EndlessRecord as error:
        return blocks, error.record.decode()
    return blocks, ""


TEXTS = st.text('a,"\n\r é', max_size=40)
SIZES = st.lists(st.integers(1, 8), max_size=12)


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, sizes=SIZES)
def test_the_records_of_the_blocks_are_the_records_of_the_text(text: str, sizes: list[int]) -> None:
    blocks, open_record = blocks_and_open_record(chunks_of(text, sizes))
    if open_record:
        assert "".join(blocks) + open_record == text
        return
    assert "".join(blocks) in (text, text + "\n")
    assert [record for block in blocks for record in records(block)] == records(text)


@pytest.mark.parametrize("text", ['"', 'a,"b\n', '"a""', '1,2\n3,"x""\n4,5\n'])
def test_an_open_quote_is_found(text: str) -> None:
    with pytest.raises(EndlessRecord):
        list(record_blocks(iter([text]), RecordLayout(",", '"')))


@pytest.mark.parametrize("text", ['a"b,c\n', '"a"b"c,d\n', '""\n', '"a\r\nb"\r\n'])
def test_a_quote_that_is_closed_or_inside_a_cell_is_not_open(text: str) -> None:
    assert b"".join(record_blocks(iter([text]), RecordLayout(",", '"'))).decode() == text


@settings(max_examples=200, deadline=None)
@given(text=st.text("a1 \t\n\r", max_size=40), sizes=SIZES)
def test_white_space_becomes_single_tabs_wherever_the_chunks_end(text: str, sizes: list[int]) -> None:
    rewritten = "".join(whole_lines(iter(chunks_of(text, sizes)), one_tab_between('"')))
    cells = [line.split("\t") for line in rewritten.split("\n") if line]
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert cells == [line.split() for line in lines if line.split()]


def test_padding_before_quotes_is_dropped_and_what_quotes_hold_is_kept() -> None:
    text = '"a", "b"\n 1,  "x, ""y"",  ""z\n , "" "\n'
    for cut in range(len(text)):
        blocks = record_blocks(iter(chunks_of(text, [cut] if cut else [])), RecordLayout(",", '"', is_padded=True))
        assert b"".join(blocks).decode() == '"a","b"\n 1,"x, ""y"",  ""z\n , "" "\n'
