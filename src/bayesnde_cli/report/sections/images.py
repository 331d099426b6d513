"""Images: those of the set beside those of the model, and those of highest and lowest density."""

from bayesnde_cli.report.blocks import note, plot_box, section, wide_grid
from bayesnde_cli.report.image_sheet import sheet_svg
from bayesnde_cli.report.markup import Markup
from bayesnde_cli.report.report_data import ImageSheets, ReportData

_LEFT_OUT = (
    "Left out for images, as they look at single features, which here are pixels: histograms and pairs of features, "
    "and the checks for values that recur and for columns that others determine."
)


def images(data: ReportData) -> Markup | None:
    """Real and generated images side by side."""
    found = data.images
    if found is None:
        return None
    boxes = [
        plot_box(title, sheet_svg(rows, title))
        for title, rows in (("Images of these rows", found.real), ("Images that the model makes", found.generated))
        if rows
    ]
    text = "Both come as chance has it, and the model's as they are drawn, with its noise. An image of these rows "
    text += f"tells its log-density where it is pointed at.{_classes(data, found)}"
    text += "" if found.white == 255 else f" White is {found.white}, the highest value of the training images."
    return section("images", "Real and generated images", wide_grid(*boxes), note(text), note(_LEFT_OUT))


def ends(data: ReportData) -> Markup | None:
    """The images of highest and of lowest density."""
    found = data.images
    if found is None or not found.highest:
        return None
    boxes = [
        plot_box(title, sheet_svg(rows, title))
        for title, rows in (("Highest, from the left", found.highest), ("Lowest, from the left", found.lowest))
    ]
    text = "Below each image is its log-density in nats, in the units of the file. It says how common such pixels are, "
    text += "not how good an image looks: even and plain ones are often the densest."
    return section("ends", "Images of highest and lowest density", wide_grid(*boxes), note(text))


def _classes(data: ReportData, found: ImageSheets) -> str:
    n_shown, n = len(found.generated), len(data.subject.classes)
    return f" The first {n_shown} of {n:,} classes." if n > n_shown else ""
