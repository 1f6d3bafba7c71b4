"""Every figure can be run with the paper's networks and few members."""

import dataclasses

import pytest

from experiments.bench import paper
from experiments.core.config import override
from experiments.figures import discover

FIGURES = {
    name: figure for name, figure in discover().items() if paper.networks(figure.presets["paper"])
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_at_full_width_has_the_papers_networks(name):
    figure, config = FIGURES[name], paper.full_width(FIGURES[name])
    assert paper.networks(config) == paper.networks(figure.presets["paper"])
    wanted = paper.EXCEPTIONS.get(name, {}).get("num_steps", paper.STEPS)
    assert getattr(config, "num_steps", wanted) == wanted
    changes = [item.removeprefix("--set=") for item in paper.arguments(figure)[4:]]
    assert override(figure.presets["smoke"], changes) == config


def test_exceptions_change_fields_of_figures():
    for name, fields in paper.EXCEPTIONS.items():
        known = {field.name for field in dataclasses.fields(FIGURES[name].presets["smoke"])}
        assert fields.keys() <= known


def test_a_figure_runs_at_full_width(capsys):
    (table,) = paper.run(paper.PaperBenchConfig(figures=("architecture", "stability_plane")))
    ((name, outcome, seconds, gib, losses),) = table.rows
    assert (name, outcome, losses) == ("architecture", "runs", "none")
    assert seconds > 0
    assert 0.1 < gib < 8
    said = capsys.readouterr().err
    assert "left out, without a network: stability_plane" in said
    assert "run architecture --preset smoke --set=model.width=1.0" in said
