from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.groups.store.texts import join_texts, split_texts

WIDTHS = st.integers(0, 3)
SAID = WIDTHS.flatmap(
    lambda width: st.dictionaries(
        st.integers(0, 2**32 - 1),
        st.tuples(*[st.sampled_from([b"", b"a", b"bc", bytes(300)]) | st.binary()] * width),
        min_size=1,
    )
)


@given(SAID)
def test_what_is_joined_comes_apart_again_in_the_same_order(said: dict[int, tuple[bytes, ...]]) -> None:
    found = split_texts(join_texts(said))
    assert found == said
    assert list(found) == list(said)


def test_a_text_that_many_say_is_written_once() -> None:
    said = {rank: (b"x" * 1000, bytes([rank % 2]) * 1000) for rank in range(100)}
    joined = join_texts(said)
    assert len(joined) < 3 * 1000 + 100 * 3 * 4 + 100
    found = split_texts(joined)
    assert found[3][0] is found[98][0]
