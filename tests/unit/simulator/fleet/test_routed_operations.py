"""Operations with routes beside the layouts that say them."""

from dataclasses import replace

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.programs.routes import Route
from evenkeel.simulator.fleet.operation.operation import layout_of, operation_of

HOME = uniform_layout(num_blocks=4, tensor=1, pipeline=2, data=3, num_micro_batches=18)
ROUTES = (Route(micro_batch=2, stage=0, replica=1), Route(micro_batch=13, stage=1, replica=0))


def test_a_layout_with_routes_comes_back_from_its_operation():
    layout = replace(HOME, routes=ROUTES, routable=True)
    operation = operation_of(layout)
    assert operation.routes[0][2] == (1, 0)
    assert operation.routes[2][1] == (2, 0)
    assert layout_of(operation, HOME.num_blocks) == layout


def test_a_layout_without_routes_is_an_operation_without_routes():
    assert operation_of(HOME).is_plain
    assert layout_of(operation_of(HOME), HOME.num_blocks) == HOME
