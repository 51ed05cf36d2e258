import base64
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.history.reads.paging import Listing, PageError, Place, limit_of, page_of, place_of, token_of

MOMENTS = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]))
LISTING = Listing("plan_id", "llama")
IDS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))


@given(at=MOMENTS, item_id=IDS)
def test_any_place_survives_its_token(at: datetime, item_id: str) -> None:
    assert place_of(token_of(LISTING, Place(at, item_id)), LISTING) == Place(at, item_id)


@pytest.mark.parametrize("other", [Listing("verdict_id", "llama"), Listing("plan_id")])
def test_a_token_of_another_list_is_refused_and_says_where_it_belongs(other: Listing) -> None:
    token = token_of(other, Place(datetime(2026, 1, 1, tzinfo=UTC), "v1"))

    with pytest.raises(PageError, match=r"page_token is of another list.*same job_id"):
        place_of(token, LISTING)


def test_no_token_is_the_first_page() -> None:
    assert place_of("", LISTING) is None


@given(st.text(min_size=1))
def test_no_text_makes_the_decoder_fail_in_another_way(token: str) -> None:
    try:
        place_of(token, LISTING)
    except PageError as error:
        assert "page_token" in str(error)  # noqa: PT017 - most texts, and every one that is not ours


@pytest.mark.parametrize(
    "document",
    ["", "1", "[]", '["2026-11-02T08:00:00+00:00"]', '["2026-11-02T08:00:00", "no zone"]', '["x", "y"]', "[" * 9000,
     '["2026-11-02T08:00:00+00:00", 5]', '["2026-11-02T08:00:00+00:00", "\\u0000"]', "[1, 2]",
     '["2026-11-02T08:00:00+00:00", "\\ud800"]', '{"a": 1, "b": 2}'],
)  # fmt: skip
def test_a_forged_token_is_refused(document: str) -> None:
    token = base64.urlsafe_b64encode(document.encode()).decode() or "?"

    with pytest.raises(PageError, match="page_token"):
        place_of(token, LISTING)


def test_page_sizes_have_a_default_and_a_maximum_and_are_never_negative() -> None:
    assert [limit_of(size) for size in (0, 1, 1000, 1001)] == [100, 1, 1000, 1000]
    with pytest.raises(PageError, match="page_size -1"):
        limit_of(-1)


def test_a_page_has_a_successor_exactly_when_there_was_one_item_more() -> None:
    places = [Place(datetime(2026, 1, number + 1, tzinfo=UTC), str(number)) for number in range(3)]

    more = page_of(LISTING, ["a", "b", "c"], places, 2)
    last = page_of(LISTING, ["a", "b", "c"], places, 3)

    assert (more.items, place_of(more.next_page_token, LISTING)) == (("a", "b"), places[1])
    assert (last.items, last.next_page_token) == (("a", "b", "c"), "")
