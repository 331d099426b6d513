"""The picture of the README: the true density of the involute on the left, the estimated one on the right.

bayesnde fit examples/data/involute.csv
bayesnde grid x1 x2 --range=-7.5,7.5,-7.5,7.5 --points 240 --out grid.parquet
python examples/involute_picture.py grid.parquet examples/involute.png
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from matplotlib import colormaps

from bayesnde_cli.report.sheets import png_bytes
from bayesnde_cli.tables.simulators import Involute

# The colours span this many nats below the highest true density.
DEPTH = 6.0
GAP_PIXELS, PIXELS_PER_POINT = 24, 2


def main(grid_file: str, picture_file: str) -> None:
    """Draw both maps with one scale of colours."""
    table = pq.read_table(grid_file)
    points = np.stack([table[name].to_numpy() for name in ("x1", "x2")], axis=1)
    side = len(np.unique(points[:, 0]))
    true, estimated = Involute().log_density(points), table["log_density"].to_numpy()
    top = true.max()
    maps = []
    for log_density in (true, estimated):
        square = log_density.reshape(side, side).T[::-1]  # x2 upwards
        colours = colormaps["viridis"](np.clip(1.0 + (square - top) / DEPTH, 0.0, 1.0), bytes=True)[..., :3]
        maps.append(np.repeat(np.repeat(colours, PIXELS_PER_POINT, axis=0), PIXELS_PER_POINT, axis=1))
    gap = np.full((len(maps[0]), GAP_PIXELS, 3), 255, np.uint8)
    Path(picture_file).write_bytes(png_bytes(np.concatenate([maps[0], gap, maps[1]], axis=1)))


if __name__ == "__main__":
    main(*sys.argv[1:])
