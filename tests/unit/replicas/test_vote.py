"""What a vote sums up."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.replicas.vote import Outcome, Said, ballot

SAID = st.builds(
    Said,
    next_epoch=st.integers(0, 1 << 40),
    complete=st.booleans(),
    num_units=st.integers(0, 1 << 30),
    settings=st.floats(-1e6, 1e6),
)


@given(st.lists(st.tuples(SAID, st.lists(st.booleans(), min_size=3, max_size=3)), min_size=1, max_size=5))
def test_everybody_is_heard(voters: list[tuple[Said, list[bool]]]) -> None:
    ballots = [
        ballot(
            float(place),
            torch.tensor(2.0 * place),
            used,
            said,
            sent={(place + 1) % len(voters): voters[(place + 1) % len(voters)][0].num_units},
            place=place,
            num_replicas=len(voters),
            device=torch.device("cpu"),
        )
        for place, (said, used) in enumerate(voters)
    ]
    numbers = torch.stack(ballots).sum(0).tolist()
    replicas = [10 + place for place in range(len(voters))]
    outcome = Outcome.of(numbers, 3, replicas)
    assert outcome.said == {replica: said for replica, (said, _) in zip(replicas, voters, strict=True)}
    assert outcome.weight == sum(range(len(voters)))
    assert outcome.loss == 2 * outcome.weight
    assert outcome.used == tuple(any(used[index] for _, used in voters) for index in range(3))
    assert Outcome.of(numbers, 3).used == outcome.used
