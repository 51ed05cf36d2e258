"""What happens to a job, told to a person: a line for each thing that is new."""

from typing import Any

from evenkeel.cli.fleet.messages import job_row, plan_row, verdict_row
from evenkeel.scheduler.v1 import scheduler_pb2


class WatchLines:
    """Lines on the messages of one watch; what an earlier line said of the same thing is left out."""

    def __init__(self) -> None:
        self._job, self._layout = "", ""
        self._reasons: dict[str, str] = {}

    def forget_job(self) -> None:
        """The next message of the job is told whatever it says, as after the fleet API was away."""
        self._job, self._layout = "", ""

    def line(self, response: scheduler_pb2.WatchJobResponse) -> str:
        """What is new; empty when nothing is, or this version does not know what happened."""
        match response.WhichOneof("happened"):
            case "job":
                return self._job_line(job_row(response.job))
            case "verdict":
                return _verdict_line(verdict_row(response.verdict))
            case "plan":
                return self._plan_line(plan_row(response.plan))
            case None:
                return ""

    def _job_line(self, row: dict[str, Any]) -> str:
        advice = "" if row["reshapable"] is not False else " (gets advice, no plans)"
        job = f"{row['state']}{advice}, epoch {row['epoch']}, bound {row['proportional_bound']:.3f}"
        layout = "" if row["layout"] == self._layout else f", {row['layout']}"
        job += f", {row['standing']}" if row["standing"] else ""
        if job == self._job and not layout:
            return ""
        self._job, self._layout = job, row["layout"]
        return job + layout

    def _plan_line(self, row: dict[str, Any]) -> str:
        levers = " + ".join(row["levers"]) or "nothing"
        times = f"predicted {row['predicted_seconds']:.3f} s"
        if row["measured_seconds"] is not None:
            times += f", measured {row['measured_seconds']:.3f} s"
        told = self._reasons.get(row["plan_id"]) == row["reason"]
        self._reasons[row["plan_id"]] = row["reason"]
        return f"{row['state']}: {levers}, {times}" + (f"; {row['reason']}" if row["reason"] and not told else "")


def _verdict_line(row: dict[str, Any]) -> str:
    who = ", ".join(row["culprits"]) or "nobody"
    return f"{row['kind']}: {who}, throughput {row['throughput']:.2f}, since iteration {row['first_iteration']}"
