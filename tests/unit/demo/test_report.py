import struct
from html.parser import HTMLParser

import pytest

from evenkeel.demo.observed.observations import Observations
from evenkeel.demo.report import pictures
from evenkeel.demo.report.expectations import expectations_of
from evenkeel.demo.report.page import render_report
from evenkeel.demo.report.summary import summarise
from tests.unit.demo.synthetic_run import Run, whole_run

VOID = {"meta", "img", "br", "link", "input"}


class Structure(HTMLParser):
    """Checks that tags nest, and keeps the text and every address that a tag points to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_of(seen: Observations) -> tuple[str, Structure]:
    images = [("speed of each rank", pictures.heat_map(seen))]
    page = render_report(seen, summarise(seen), expectations_of(seen), images, facts=[("seed", "7")])
    structure = Structure()
    structure.feed(page)
    return page, structure


def test_the_page_is_well_formed_and_needs_no_other_file() -> None:
    _, structure = page_of(whole_run().finish())
    assert structure.open == []
    assert structure.addresses
    assert all(address.startswith("data:") for address in structure.addresses)


def test_what_came_from_outside_is_escaped() -> None:
    page, structure = page_of(whole_run().finish())
    assert "slower <by> 10 %" not in page
    assert "slower <by> 10 %" in "".join(structure.text)


def test_the_page_says_when_something_did_not_hold() -> None:
    run = whole_run()
    run.step(1, missing=("a verdict",))
    _, structure = page_of(run.finish())
    text = "".join(structure.text)
    assert "1 of " in text
    assert "NOT HELD" in text


@pytest.mark.parametrize("picture", [pictures.heat_map, pictures.throughput, pictures.loss])
@pytest.mark.parametrize("run", [whole_run, Run])
def test_each_picture_can_be_drawn_also_of_nothing(picture: object, run: object) -> None:
    assert callable(picture)
    assert callable(run)
    image = picture(run().finish())
    width, height = struct.unpack(">II", image[16:24])
    assert image.startswith(b"\x89PNG")
    assert width > 1000
    assert height > 300
