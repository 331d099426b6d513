"""The report: `collect` reads a scored set, `trust` judges it, `plots` and `sheets` draw, `page` writes the HTML."""
