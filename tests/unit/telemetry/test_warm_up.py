"""Nothing is compiled while records wait."""

import subprocess
import sys

# In a process of its own: here other tests have had everything compiled.
_SCRIPT = """
import asyncio
import sys

from contracts.topics import RECORDS
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from services.telemetry.warm_up import warm_up
from tests.unit.telemetry.handled import PARTITION, Service

def compiled():
    return {
        f"{module}.{name}": len(value.signatures)
        for module in list(sys.modules) if module.startswith("services.")
        for name, value in vars(sys.modules[module]).items() if hasattr(value, "signatures")
    }

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
    assert len(service.sent) > 8
    assert service.rollups.rows

warm_up()
ready = compiled()
asyncio.run(work())
assert len(ready) > 10
later = {name for name, count in compiled().items() if count != ready[name]}
assert not later, later
"""


def test_what_is_compiled_is_ready_before_the_first_record() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
