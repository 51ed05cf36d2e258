"""What a request must look like before anybody acts on it: each check names the field, and says what would do."""

import re
from collections.abc import Sequence

from evenkeel.layouts.programs.schedules import SCHEDULES
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.scheduler.adapters.api.errors import InvalidRequestError

MIN_TOKEN_CHARACTERS = 16
_MAX_TOKEN_CHARACTERS = 4096
_MAX_TEXT_CHARACTERS = 256
_MAX_LINE_CHARACTERS = 1000
_MAX_EXIT = 255
_LATEST_UNIX_SECONDS = 253_402_300_799
_MAX_RANKS = 8192
_MAX_BLOCKS = 4096
_MAX_PASSES = 100_000
# What the planner takes for a layout grows with a replica's micro-batches: a few seconds for so many.
_MAX_MICRO_BATCHES = 2048
_MAX_RANK = 1_000_000
_MAX_WIDTH = 65_536
_MAX_COST = 1e30
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5})")


def check_register_job(request: pb.RegisterJobRequest) -> None:
    """Accept a job.

    Raises:
        InvalidRequestError: Its id, token, model or layout cannot be.
    """
    check_name("job_id", request.job_id)
    if request.tenant:
        check_name("tenant", request.tenant)
    _check_text("name", request.name)
    token = request.job_token
    if not (MIN_TOKEN_CHARACTERS <= len(token) <= _MAX_TOKEN_CHARACTERS and token.isascii() and token.isprintable()):
        raise InvalidRequestError(
            f"job_token: {MIN_TOKEN_CHARACTERS} to {_MAX_TOKEN_CHARACTERS} printable ASCII characters"
        )
    _check_layout(request)
    _check_model(request)


def check_register_ranks(request: pb.RegisterRanksRequest) -> None:
    """Accept processes of a job's ranks.

    Raises:
        InvalidRequestError: One of the fields cannot be.
    """
    check_name("job_id", request.job_id)
    _check_processes("processes", request.processes)
    for process in request.processes:
        for field, text in (("node", process.node), ("device", process.device)):
            if not text:
                raise InvalidRequestError(f"processes.{field}: must not be empty")
            _check_text(f"processes.{field}", text)
        address = _ADDRESS.fullmatch(process.address)
        if address is None or not 0 < int(address["port"]) < 65536:
            raise InvalidRequestError(
                f"processes.address {process.address[:80]!r}: must be host:port of the rank's controller"
            )


def check_report_exits(request: pb.ReportExitsRequest) -> None:
    """Accept ends of processes of a job's ranks.

    Raises:
        InvalidRequestError: One of the fields cannot be.
    """
    check_name("job_id", request.job_id)
    _check_processes("exits", request.exits)
    for one in request.exits:
        for field, number in (("code", one.code), ("signal", one.signal)):
            if not 0 <= number <= _MAX_EXIT:
                raise InvalidRequestError(f"exits.{field} {number}: must be 0 to {_MAX_EXIT}")
        check_line("exits.last_line", one.last_line)
        if one.HasField("at") and not (0 <= one.at.seconds <= _LATEST_UNIX_SECONDS and 0 <= one.at.nanos < 10**9):
            raise InvalidRequestError(f"exits.at {one.at.seconds} s, {one.at.nanos} ns: from 1970 to 9999")


def check_line(field: str, text: str) -> None:
    """Accept a line that a program wrote.

    Raises:
        InvalidRequestError: It is too long, or more than a line.
    """
    if len(text) > _MAX_LINE_CHARACTERS or not text.isprintable():
        raise InvalidRequestError(f"{field}: at most {_MAX_LINE_CHARACTERS} printable characters")


def _check_processes(field: str, processes: Sequence[pb.RankProcess] | Sequence[pb.RankExit]) -> None:
    if not 0 < len(processes) <= _MAX_RANKS:
        raise InvalidRequestError(f"{field}: {len(processes)} of them, must be 1 to {_MAX_RANKS}")
    for process in processes:
        for name, number in (("rank", process.rank), ("incarnation", process.incarnation)):
            if not 0 <= number <= _MAX_RANK:
                raise InvalidRequestError(f"{field}.{name} {number}: must be 0 to {_MAX_RANK}")
    if len({process.rank for process in processes}) < len(processes):
        raise InvalidRequestError(f"{field}: each rank at most once")


def check_plan_id(plan_id: str) -> None:
    """Accept a plan id.

    Raises:
        InvalidRequestError: No plan can have it.
    """
    if not plan_id:
        raise InvalidRequestError("plan_id: must not be empty; list the plans to find one")
    _check_text("plan_id", plan_id)


def check_name(field: str, value: str) -> None:
    """Accept an id that people choose.

    Raises:
        InvalidRequestError: Nothing can be called so.
    """
    if not _NAME.fullmatch(value):
        raise InvalidRequestError(f"{field} {value[:80]!r}: 1 to 128 letters, digits, '.', '_' or '-'")


def _check_text(field: str, value: str) -> None:
    if len(value) > _MAX_TEXT_CHARACTERS or not value.isprintable():
        raise InvalidRequestError(f"{field}: at most {_MAX_TEXT_CHARACTERS} printable characters")


def _check_layout(request: pb.RegisterJobRequest) -> None:
    layout = request.layout
    stages = [stage for replica in layout.replicas for stage in replica.stages]
    ranks = {rank for stage in stages for rank in stage.ranks}
    num_ranks, highest = len(ranks) + len(layout.standbys), max([*ranks, *layout.standbys], default=0)
    widest = max((sum(stage.shares) for stage in stages), default=0)
    most = max((replica.num_micro_batches for replica in layout.replicas), default=0)
    num_passes = sum(len(order.passes) for replica in layout.replicas for order in replica.orders)
    for number, limit, words in (
        (num_ranks, _MAX_RANKS, "layout: {} ranks, at most {}"),
        (highest, _MAX_RANK, "layout: rank {}, at most {}"),
        (widest, _MAX_WIDTH, "layout: the shares of a stage add up to {}, at most to {}"),
        (most, _MAX_MICRO_BATCHES, "layout.replicas.num_micro_batches {}: at most {} each"),
        (num_passes, _MAX_PASSES, "layout.replicas.orders: {} passes, at most {}"),
    ):
        if number > limit:
            raise InvalidRequestError(words.format(number, limit))
    for field, names in (("schedule", [layout.schedule] * bool(layout.schedule)), ("schedules", layout.schedules)):
        for name in names:
            if name not in SCHEDULES:
                known = ", ".join(sorted(SCHEDULES))
                raise InvalidRequestError(f"layout.{field} {name[:80]!r}: one of {known}")
    if layout.routes:
        raise InvalidRequestError(f"layout.routes: {len(layout.routes)} of them; a job begins without, plans make them")
    if layout.whole and any([len(stage.ranks) for stage in each.stages] != [1] for each in layout.replicas):
        raise InvalidRequestError("layout.whole: each replica is one stage of one rank, the one that speaks for it")


def _check_model(request: pb.RegisterJobRequest) -> None:
    blocks = request.model.blocks
    if len(blocks) != request.layout.num_blocks:
        raise InvalidRequestError(
            f"model has {len(blocks)} blocks but the layout says {request.layout.num_blocks}: must be the same"
        )
    if len(blocks) > _MAX_BLOCKS:
        raise InvalidRequestError(f"model.blocks: {len(blocks)}, at most {_MAX_BLOCKS}")
    if request.model.activation_bytes_per_token < 0:
        raise InvalidRequestError("model.activation_bytes_per_token: must be 0 or more")
    for number, block in enumerate(blocks):
        if not 1 <= block.max_width <= _MAX_WIDTH:
            raise InvalidRequestError(f"model.blocks[{number}].max_width {block.max_width}: must be 1 to {_MAX_WIDTH}")
        # Everything else in it is a cost.
        if not all(0 <= getattr(block, field.name) <= _MAX_COST for field in block.DESCRIPTOR.fields):
            raise InvalidRequestError(f"model.blocks[{number}]: costs must be 0 to {_MAX_COST:g}")
    if not any(b.forward_flops_per_token or b.forward_flops_per_squared_length for b in blocks):
        raise InvalidRequestError(
            "model.blocks: none costs anything; give 1 flop per token to each where nobody knows better"
        )
