"""A layout with a mix in the history, and layouts from before there were any."""

from dataclasses import replace

from evenkeel.history.documents import layout_from_document, layout_to_document
from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.programs.routes import Route
from evenkeel.layouts.sizes.mix import even_mix

HOME = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=2, num_micro_batches=6)


def test_a_mix_is_kept_with_its_layout():
    layout = replace(HOME, mix=even_mix((3, 3), token_cost=2.0, square_cost=0.5, fill=1, max_scale=1.25))
    assert layout_from_document(layout_to_document(layout)) == layout


def test_a_layout_without_a_mix_is_written_as_it_always_was():
    document = layout_to_document(HOME)
    assert set(document) == {"num_blocks", "schedule", "standbys", "replicas"}
    assert layout_from_document(document) == HOME


def test_schedules_that_a_plan_may_choose_are_kept_with_their_layout():
    layout = replace(HOME, schedules=("1f1b", "zb-h1"))
    assert layout_from_document(layout_to_document(layout)) == layout


def test_routes_are_kept_with_their_layout():
    routes = (Route(micro_batch=1, stage=1, replica=1), Route(micro_batch=3, stage=0, replica=0))
    layout = replace(HOME, routes=routes, routable=True)
    assert layout_from_document(layout_to_document(layout)) == layout
