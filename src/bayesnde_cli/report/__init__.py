"""The report: one self-contained page about a scored data set. Plots are SVG of our own, without any script.

`report_data` says what a page is made from, `page` renders it, `stages/report` reads it from a run.
"""
