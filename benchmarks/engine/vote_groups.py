"""What the groups of a step vote cost, in one group and in levels: ``python -m benchmarks.engine.vote_groups``.

Real processes on gloo and one store. For each number of ranks, flat and narrower votes take turns: all ranks meet,
build the vote's groups, and vote. A time is that of the slowest rank; the table has medians, and ratios to the flat
vote's. JSON goes to ``--out``. More ranks than cores take turns on them, so ratios say more than milliseconds.
"""

import argparse
import os
import signal
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.planning.tables import table, write_json
from evenkeel.layouts.ranks.levels import levels_of
from evenkeel.trainer_sdk.groups.building.assembly import Assembly, assembly_specs
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.c10d import c10d
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter

CPU = torch.device("cpu")
WAITER = Waiter(lambda: False)
VOTES = 30
PAIRS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Seconds of one rank.

    Attributes:
        groups: From the end of the meeting until its groups of the vote are there.
        vote: For a vote, once they were used.
        pair: For a further group, of two.
    """

    groups: float
    vote: float
    pair: float


def _rank(rank: int, ranks: Sequence[int], widths: Sequence[int], address: str, told: Connection) -> None:
    """Builds and votes once per width; what comes of it goes to ``told``."""
    torch.set_num_threads(1)
    rendezvous = Rendezvous(address, f"vote-{len(ranks)}")
    builder = GroupBuilder(rank, rendezvous, device=CPU, waiter=WAITER)
    found = []
    for epoch, widest in enumerate(widths):
        builder.meet(epoch, ranks, 0)
        started = time.perf_counter()
        groups = builder.add(epoch, assembly_specs("world", ranks, widest))
        built = time.perf_counter()
        assembly = Assembly("world", ranks, widest, rank=rank, groups=groups, device=CPU)
        assembly.fold([1.0, 2.0, 3.0], _sums)
        voting = time.perf_counter()
        for _ in range(VOTES):
            assembly.fold([1.0, 2.0, 3.0], _sums)
        voted = time.perf_counter()
        other = rank ^ 1
        pair = (min(rank, other), max(rank, other))
        paired = builder.add(epoch, [GroupSpec(name=f"pair/{pair[0]}/{n}", ranks=pair) for n in range(PAIRS)])
        ended = time.perf_counter()
        found.append(Build(groups=built - started, vote=(voted - voting) / VOTES, pair=(ended - voted) / PAIRS))
        # Nobody drops a group to which its peer still connects.
        rendezvous.meet(f"done/{epoch}", rank, ranks, 0, waiter=WAITER, timeout_seconds=60.0)
        builder.abandon({**groups, **paired})
    told.send(found)
    signal.pause()  # a rank that ends closes connections that its peers may still be opening


def _sums(rows: torch.Tensor) -> torch.Tensor:
    return rows.sum(dim=0)


def _store(told: Connection) -> None:
    store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told.send(f"127.0.0.1:{store.port}")
    signal.pause()


def _fork(body: Any, *arguments: Any) -> tuple[int, Connection]:
    """A process that runs ``body``, which gets the writing end of a pipe last: its id, and the reading end."""
    reading, writing = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            body(*arguments, writing)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    writing.close()
    return pid, reading


def measure(num_ranks: int, widths: Sequence[int], rounds: int) -> dict[int, Build]:
    """The median, for each width, of what the slowest rank took."""
    store_pid, reading = _fork(_store)
    address, ranks = reading.recv(), tuple(range(num_ranks))
    turns = [width for _ in range(rounds + 1) for width in widths]
    children = [_fork(_rank, rank, ranks, turns, address) for rank in ranks]
    try:
        builds: list[list[Build]] = [told.recv() for _, told in children]
    finally:
        for pid in [store_pid, *(pid for pid, _ in children)]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    slowest = [
        Build(**{name: max(getattr(one, name) for one in turn) for name in ("groups", "vote", "pair")})
        for turn in zip(*builds, strict=True)
    ][len(widths) :]
    return {
        width: Build(
            **{
                name: median(getattr(one, name) for one in slowest[place :: len(widths)])
                for name in ("groups", "vote", "pair")
            }
        )
        for place, width in enumerate(widths)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--rounds", type=int, default=5, help="builds of each kind, after one that does not count")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks/vote_groups.json"))
    chosen = parser.parse_args(arguments)
    lines, rows = [], []
    for num_ranks in chosen.ranks:
        root = next(width for width in range(2, num_ranks + 1) if width**2 >= num_ranks)
        cube = next(width for width in range(2, num_ranks + 1) if width**3 >= num_ranks)
        found = measure(num_ranks, (num_ranks, root, cube), chosen.rounds)
        flat = found[num_ranks]
        for width, build in found.items():
            sizes = " + ".join(str(max(map(len, groups))) for groups in levels_of(range(num_ranks), width))
            values = {name: 1e3 * getattr(build, name) for name in ("groups", "vote", "pair")}
            rows.append({"num_ranks": num_ranks, "widest": width, "levels": sizes, **values})
            lines.append(
                [
                    str(num_ranks),
                    sizes,
                    f"{values['groups']:.0f}",
                    f"{build.groups / flat.groups:.2f}",
                    f"{values['vote']:.1f}",
                    f"{build.vote / flat.vote:.2f}",
                    f"{values['pair']:.1f}",
                ]
            )
    header = ["ranks", "widest group of each level", "build ms", "of flat", "vote ms", "of flat", "a pair's group ms"]
    print(table(header, lines))
    write_json(chosen.out, {"load": os.getloadavg()[0], "cores": os.cpu_count(), "rows": rows})


if __name__ == "__main__":
    main()
