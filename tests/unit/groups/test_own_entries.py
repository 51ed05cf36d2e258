"""What a process tells a store that starts anew."""

from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from evenkeel.trainer_sdk.groups.store.store_watch import OwnEntries

KEYS = st.sampled_from(["finished", "voted/1", "epoch/1/ready", "epoch/1/world/0", "epoch/12/ready", "epoch/2/ready"])
ACTIONS = st.lists(st.tuples(KEYS, st.binary(max_size=4)) | st.sampled_from(["epoch/1/", "epoch/2/", "voted/"]))


@given(ACTIONS)
def test_a_new_store_is_told_the_newest_of_what_was_set_and_not_forgotten(
    actions: list[tuple[str, bytes] | str],
) -> None:
    entries, due = OwnEntries(), {}
    for action in actions:
        if isinstance(action, str):
            entries.forget(action)
            due = {key: value for key, value in due.items() if not key.startswith(action)}
        else:
            entries.add(dict([action]))
            due |= dict([action])
    for prefix in ("epoch/1/", "epoch/1/world/", "finished/"):
        assert entries.any_below(prefix) == any(key.startswith(prefix) for key in due)
    store = HashStore()
    assert entries.set_in(store) == len(entries) == len(due)
    assert {key: store.get(key) for key in due} == due
    assert store.num_keys() == len(due)
