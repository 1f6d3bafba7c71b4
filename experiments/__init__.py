"""The paper's evidence, re-run: `python -m experiments` trains, plots, judges and reports.

A figure is a configuration (`config`), a `compute` from it to a labelled dataset and a `plot`
of that dataset (`figures`). `running` is what `compute` may use of the outside world, `results` is
what lies on disk, `claims` judges datasets and `report` puts everything on one page.
"""
