"""Replicas that come, die and lose connections in any order end up training together, with nobody's steps lost."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.trainer_sdk.replicas.membership.passage import Passage
from evenkeel.trainer_sdk.replicas.membership.roster import Again, Entry, Epoch, Gone, Ready, Roster
from evenkeel.trainer_sdk.replicas.shares import Standing, StateLostError, settle

Act = Callable[[], None]


@dataclass
class Process:
    """One process of a replica: what it has read, and what it has still to write."""

    replica: int
    token: str
    roster: Roster
    passage: Passage = field(default_factory=Passage)
    epoch: Epoch | None = None
    doing: str = "waits"
    num_read: int = 0
    unwritten: list[Entry] = field(default_factory=list)
    step: int = 0
    complete: bool = False
    synced: bool = False
    is_gone: bool = False


class World:
    """A job's log, its meetings and votes, and one process a replica."""

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas
        self.log: list[Entry] = []
        self.met: dict[tuple[int, str], Standing] = {}
        self.voted: dict[tuple[int, int], dict[str, int]] = {}
        self.processes: dict[int, Process] = {}
        self.gone: set[str] = set()
        self.num_started = 0
        for replica in range(num_replicas):
            self.start(replica)

    def start(self, replica: int) -> None:
        self.num_started += 1
        process = Process(replica, f"p{self.num_started}", Roster(self.num_replicas))
        process.unwritten.append(Ready(replica=replica, token=process.token, lines=()))
        self.processes[replica] = process

    def kill(self, process: Process) -> None:
        process.is_gone = True
        self.gone.add(process.token)

    def faults(self) -> Iterator[Act]:
        for process in self.processes.values():
            if process.is_gone:
                yield lambda replica=process.replica: self.start(replica)
            else:
                yield lambda process=process: self.kill(process)
                if process.doing != "waits":
                    yield lambda process=process: self.leave(process, "a connection broke")

    def acts(self) -> Iterator[Act]:
        """All that somebody may do next by itself."""
        for process in self.processes.values():
            if process.is_gone:
                continue
            if process.num_read < len(self.log):
                yield lambda process=process: self.read(process)
            if process.unwritten:
                yield lambda process=process: self.write(process)
            for member in self.dead_peers(process):
                yield lambda process=process, gone=member: process.unwritten.append(gone)
            if process.doing == "waits":
                if process.passage.next_epoch(process.roster, process.token) is not None:
                    yield lambda process=process: self.enter(process)
                elif process.passage.is_broken:
                    yield lambda process=process: process.unwritten.append(process.passage.complaint())
            elif process.roster.newest_abrupt > process.passage.entered:
                yield lambda process=process: self.leave(process, "")
            elif process.doing == "meets":
                if all((process.epoch.number, each.token) in self.met for each in process.epoch.members):
                    yield lambda process=process: self.meet(process)
            elif self.is_to_vote(process):
                yield lambda process=process: self.vote(process)
            elif self.has_passed(process):
                yield lambda process=process: self.hear(process)

    def read(self, process: Process) -> None:
        process.roster.apply(self.log[process.num_read])
        process.num_read += 1
        if process.token in process.roster.gone:
            self.kill(process)

    def write(self, process: Process) -> None:
        entry = process.unwritten.pop(0)
        if process.roster.is_due(entry):
            self.log.append(entry)

    def dead_peers(self, process: Process) -> list[Gone]:
        """Members of its epoch whose end it sees, and has not told yet."""
        if process.epoch is None:
            return []
        ends = [
            Gone(replica=each.replica, token=each.token, why="its process ended")
            for each in process.epoch.members
            if each.token in self.gone
        ]
        return [end for end in ends if process.roster.is_due(end) and end not in process.unwritten]

    def leave(self, process: Process, why: str) -> None:
        process.passage.fail(why)
        process.doing = "waits"

    def enter(self, process: Process) -> None:
        epoch = process.passage.next_epoch(process.roster, process.token)
        process.passage.enter(epoch.number)
        process.epoch, process.doing = epoch, "meets"
        founds = any(each.founds for each in epoch.members if each.token == process.token)
        self.met[epoch.number, process.token] = Standing(
            replica=process.replica,
            step=process.step,
            complete=process.complete or founds,
            synced=process.synced,
            last_vote=(1.0,) if process.step else (),
        )

    def meet(self, process: Process) -> None:
        standings = [self.met[process.epoch.number, each.token] for each in process.epoch.members]
        try:
            settlement = settle(standings, 1)
        except StateLostError as error:
            if process.synced:
                self.kill(process)
            else:
                process.unwritten.append(Again(epoch=process.passage.entered, why=str(error), anew=True))
                self.leave(process, "")
            return
        if not process.synced:
            process.synced = True
            process.complete = process.replica in settlement.complete
            process.step = settlement.step
        assert settlement.step - process.step in (0, 1), "a step that not all have voted for"
        process.step = settlement.step
        process.doing = "trains"

    def is_to_vote(self, process: Process) -> bool:
        return process.token not in self.voted.get((process.passage.entered, process.step), {})

    def vote(self, process: Process) -> None:
        newest = process.roster.epoch.number if process.roster.epoch else process.passage.entered
        self.voted.setdefault((process.passage.entered, process.step), {})[process.token] = newest

    def has_passed(self, process: Process) -> bool:
        votes = self.voted[process.passage.entered, process.step]
        return all(each.token in votes for each in process.epoch.members)

    def hear(self, process: Process) -> None:
        process.passage.agree(min(self.voted[process.passage.entered, process.step].values()))
        process.step += 1
        process.complete = True  # a newcomer gets all of the state within a step here
        if process.passage.is_due:
            process.doing = "waits"


def all_train(world: World) -> bool:
    living = world.processes.values()
    return {each.doing for each in living} == {"trains"} and len({each.passage.entered for each in living}) == 1


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 3), st.integers(0, 60), st.randoms(use_true_random=False))
def test_whatever_happens_all_train_together_in_the_end(num_replicas: int, num_acts: int, chance: Random) -> None:
    world = World(num_replicas)
    for _ in range(num_acts):
        acts = list(world.acts())
        if not acts or chance.random() < 0.1:
            acts = list(world.faults())
        chance.choice(acts)()
    for process in list(world.processes.values()):
        if process.is_gone:
            world.start(process.replica)
    reached = None
    for _ in range(2000):
        for replica, process in world.processes.items():
            if process.is_gone:  # evicted, or without its state: its launcher starts it again
                world.start(replica)
        acts = list(world.acts())
        assert acts, f"nobody does anything: {world.processes}"
        chance.choice(acts)()
        if all_train(world):
            steps = {each.step for each in world.processes.values()}
            reached = max(steps) if reached is None else reached
            if min(steps) >= reached + 3:
                return
    raise AssertionError(f"they do not get to train together: {world.processes}")
