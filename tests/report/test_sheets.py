"""Sheets of images: every pixel in its place, names and hints as escaped text."""

from xml.etree import ElementTree

import numpy as np
import pytest

from bayesnde_cli.report.sheets import Picture, SheetRow, in_rows, sheet_png, sheet_svg, to_rgb, white_level
from png_pixels import decode_png

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 3, 2, 1), np.uint8)
GAP, FACTOR, PAPER = 4, 27, 170  # 3 pixels to 81
SVG = "{http://www.w3.org/2000/svg}"


def _pictures() -> list[Picture]:
    return [Picture(own, f"hint {index}", f"c{index}") for index, own in enumerate(to_rgb(IMAGES))]


def test_every_image_is_in_its_place_enlarged_with_gaps_between() -> None:
    sheet = decode_png(sheet_png(in_rows(_pictures(), 3)))
    height, width = 3 * FACTOR, 2 * FACTOR
    assert sheet.shape == (2 * height + 3 * GAP, 3 * width + 4 * GAP, 3)
    seen = np.zeros(sheet.shape[:2], bool)
    for index, image in enumerate(IMAGES):
        top, left = GAP + index // 3 * (height + GAP), GAP + index % 3 * (width + GAP)
        own = sheet[top : top + height, left : left + width]
        seen[top : top + height, left : left + width] = True
        assert np.array_equal(own, np.kron(image, np.ones((FACTOR, FACTOR, 1), np.uint8)).repeat(3, axis=2))
    assert (sheet[~seen] == PAPER).all()


@pytest.mark.parametrize(("side", "shown"), [(8, 80), (28, 84), (32, 96), (100, 100)])
def test_small_images_are_enlarged_by_whole_numbers_and_large_ones_are_not(side: int, shown: int) -> None:
    rows = in_rows([Picture(np.zeros((side, side, 3), np.uint8))], 1)
    assert decode_png(sheet_png(rows)).shape == (shown + 2 * GAP, shown + 2 * GAP, 3)


@pytest.mark.parametrize(("channels", "kept"), [(1, [0, 0, 0]), (2, [0, 0, 0]), (3, [0, 1, 2]), (4, [0, 1, 2])])
def test_channels_are_grey_or_red_green_and_blue(channels: int, kept: list[int]) -> None:
    images = np.arange(8 * channels, dtype=np.uint8).reshape(2, 2, 2, channels)
    assert np.array_equal(to_rgb(images), images[..., kept])


def test_images_that_are_dark_all_over_are_made_bright_and_others_stay() -> None:
    assert [white_level(highest) for highest in (0, 1, 16, 63, 64, 200, 255)] == [1, 1, 16, 63, 255, 255, 255]
    assert to_rgb(np.array([0, 8, 16, 40], np.uint8).reshape(4, 1, 1, 1), 16)[:, 0, 0, 0].tolist() == [
        0,
        128,
        255,
        255,
    ]


def test_an_svg_has_names_hints_captions_and_the_images() -> None:
    hostile = '<script>"&'
    rows = [SheetRow(tuple(_pictures()[:2]), hostile), SheetRow(tuple(_pictures()[2:]), "a_name_of_many_letters")]
    found = ElementTree.fromstring(sheet_svg(rows, hostile, is_file=True))
    assert found.findtext(f"{SVG}title") == hostile
    texts = [item.text for item in found.iter(f"{SVG}text")]
    assert texts == [hostile, "c0", "c1", "a_name_of_many_…", "c2", "c3", "c4"]
    images = list(found.iter(f"{SVG}image"))
    assert [image.findtext(f"{SVG}title") for image in images] == [f"hint {index}" for index in range(5)]
    assert all(image.attrib["href"].startswith("data:image/png;base64,") for image in images)
    right = max(float(image.attrib["x"]) + float(image.attrib["width"]) for image in images)
    assert right + GAP == float(found.attrib["width"])


def test_a_sheet_within_a_page_has_a_size_a_role_and_a_title() -> None:
    found = ElementTree.fromstring(sheet_svg(in_rows(_pictures(), 2), "five"))
    assert (found.tag, found.attrib["role"], found.findtext("title")) == ("svg", "img", "five")
    assert found.attrib["viewBox"] == "0 0 120 304"  # 2 of 54 and 3 of 81 + 15, with gaps
