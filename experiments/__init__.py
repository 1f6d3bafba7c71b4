"""The paper's evidence, re-run: `python -m experiments` trains, plots, judges and reports.

`core` is what a figure is made of, `data` gives tokens and images, `training` is one run as a pure
function. Every figure is a folder in one of the families of `figures`; `reproduce` runs, judges
and puts everything on one page. `train` and `bench` are the commands of those names.
"""
