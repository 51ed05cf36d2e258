"""Nothing is compiled while records wait, and nothing twice."""

import subprocess
import sys

from evenkeel.services.telemetry.warm_up import warm_up

# In a process of its own: here other tests have had everything compiled.
_SCRIPT = """
import asyncio
import sys

from evenkeel.contracts.topics import RECORDS
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from evenkeel.services.telemetry.warm_up import warm_up
from tests.unit.telemetry.handled import PARTITION, Service

def kernels():
    return {
        f"{module}.{name}": value
        for module in list(sys.modules) if module.startswith("evenkeel.services.")
        for name, value in vars(sys.modules[module]).items() if hasattr(value, "signatures")
    }

def compiled():
    return {name: len(value.signatures) for name, value in kernels().items()}

async def work():
    service = Service()
    await service.handler.assigned([PARTITION])
    for iteration in range(12):
        await service.iteration(*((rank, rank == 5 and iteration > 4, iteration) for rank in range(6)))
        await service.report(iteration, *range(6))
        records = [pb.Record(job_id="job", rank=2, samples=[pb.Sample(iteration=-1)])]
        death = pb.ProcessEvent(kind=pb.PROCESS_EVENT_KIND_DIED, rank=3)
        records.append(pb.Record(job_id="job", rank=-1, events=[death]))
        await service._take(records)
    for several in ((0,), (1,), range(2, 12)):
        await service._take([
            pb.Record(job_id="burst", rank=rank, samples=[pb.Sample(iteration=iteration, wall_seconds=1.0)])
            for iteration in several for rank in range(6)
        ])
    assert any(pb.Observation.FromString(each.value).HasField("run") for each in service.said.records)
    assert len(service.sent) > 8
    assert service.rollups.rows

warm_up()
ready = compiled()
anew = {name for name, value in kernels().items() if value.stats.cache_misses}
assert not anew, anew
asyncio.run(work())
assert len(ready) > 10
later = {name for name, count in compiled().items() if count != ready[name]}
assert not later, later
"""


def test_what_is_compiled_is_kept_for_the_next_process_and_ready_before_its_first_record() -> None:
    warm_up()
    done = subprocess.run([sys.executable, "-c", _SCRIPT], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
