"""The pages of docs/: files, links and options that they name are there."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bayesnde_cli.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.stem: path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# Of sbatch, apptainer, pip.
_OF_OTHERS = {"--array", "--mem", "--mail-type", "--nv", "--bind", "--no-cache-dir"}


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert PAGES.keys() == {"clusters", "design", "guarantees", "raw-files", "results", "scoring", "tables"}
    for name in PAGES:
        assert f"](docs/{name}.md)" in readme


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_every_path_of_a_page_leads_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)", PAGES[page])
    paths = re.findall(r"\b(?:tests|benchmarks)/[\w./]+", PAGES[page])
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    assert [path for path in paths if not (ROOT / path.rstrip(".")).exists()] == []


def test_every_option_of_a_page_exists(bayesnde: Callable) -> None:
    mentioned = {option for page in PAGES.values() for option in _OPTION.findall(page)}
    known = {option for name in COMMANDS for option in _OPTION.findall(bayesnde(name, "--help").out)}
    benchmarks = (f"benchmarks/{name}.py" for name in ("outliers", "scoring", "tables"))
    for script in ("tests/faults/campaign.py", "tests/house.py", *benchmarks):
        known |= set(_OPTION.findall((ROOT / script).read_text("utf-8")))
    assert mentioned - known - _OF_OTHERS == {"--version"}


def test_the_image_is_made_of_files_of_a_checkout() -> None:
    (section,) = re.findall(r"%files\n(.*?)\n\n", PAGES["clusters"], re.DOTALL)
    copied = [line.split() for line in section.splitlines()]
    assert len(copied) == 4
    for source, target in copied:
        assert (ROOT / source).exists()
        assert target == f"/opt/bayesnde/{source}"
