"""The registry of levers, one file each."""

from evenkeel.services.scheduler.planning.levers.depths import Depths
from evenkeel.services.scheduler.planning.levers.drop_dead import DropDead
from evenkeel.services.scheduler.planning.levers.layer_split import LayerSplit
from evenkeel.services.scheduler.planning.levers.lever import Lever
from evenkeel.services.scheduler.planning.levers.micro_batch_quota import MicroBatchQuota
from evenkeel.services.scheduler.planning.levers.migrate_stage import MigrateStage
from evenkeel.services.scheduler.planning.levers.move_ranks import MoveRanks
from evenkeel.services.scheduler.planning.levers.pair_stages import PairStages
from evenkeel.services.scheduler.planning.levers.placement import Placement
from evenkeel.services.scheduler.planning.levers.rearrange import Rearrange
from evenkeel.services.scheduler.planning.levers.regroup import Regroup
from evenkeel.services.scheduler.planning.levers.rejoin import Rejoin
from evenkeel.services.scheduler.planning.levers.schedule import Schedule
from evenkeel.services.scheduler.planning.levers.sequence_mix import SequenceMix
from evenkeel.services.scheduler.planning.levers.standby import Standby
from evenkeel.services.scheduler.planning.levers.tensor_width import TensorWidth
from evenkeel.services.scheduler.planning.levers.virtual_stages import VirtualStages

STRUCTURAL: tuple[Lever, ...] = (
    DropDead(),
    Rejoin(),
    Regroup(),
    MoveRanks(),
    PairStages(),
    Placement(),
    Depths(),
    Standby(),
)
TUNING: tuple[Lever, ...] = (
    TensorWidth(),
    LayerSplit(),
    MicroBatchQuota(),
    SequenceMix(),
    Schedule(),
    MigrateStage(),
    VirtualStages(),
)
REGISTRY: dict[str, Lever] = {lever.name: lever for lever in (*STRUCTURAL, Rearrange(), *TUNING)}

__all__ = ["REGISTRY", "STRUCTURAL", "TUNING", "Lever"]
