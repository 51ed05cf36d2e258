"""Who a rank is, in the words of verdicts: its process, and where that runs or ran."""

from dataclasses import dataclass

from evenkeel.services.detector.domain.findings.verdict import Culprit
from evenkeel.services.detector.domain.processes.life import ProcessWatch
from evenkeel.services.detector.domain.scan.residual.rows import DeviceRows


@dataclass(frozen=True, slots=True)
class Culprits:
    """Names the ranks of one job, by their devices and processes."""

    rows: DeviceRows
    processes: ProcessWatch

    def of(self, rank: int, incarnation: int | None = None) -> Culprit:
        """A rank's incarnation; None for the one whose samples came last."""
        rows = self.rows
        row = rows.row_of(rank)
        if row is None or (incarnation is not None and rows.incarnations[row] != incarnation):
            node, device = self.processes.place(rank, incarnation or 0)
            return Culprit(rank=rank, incarnation=incarnation or 0, node=node, device=device)
        known = int(rows.incarnations[row])
        return Culprit(rank=rank, incarnation=known, node=rows.nodes[row], device=rows.devices[row])

    def of_all(self, ranks: tuple[int, ...]) -> tuple[Culprit, ...]:
        """Some ranks, each as its samples came last."""
        return tuple([self.of(rank) for rank in ranks])

    def incarnation_of(self, rank: int) -> int:
        """The incarnation of a rank whose samples came last."""
        return self.of(rank).incarnation

    def node_of(self, rank: int) -> str:
        """Its node."""
        return self.of(rank).node
