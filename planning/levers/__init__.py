"""The registry of levers, one file each."""

from evenkeel.planning.levers.balance.layer_split import LayerSplit
from evenkeel.planning.levers.balance.micro_batch_quota import MicroBatchQuota
from evenkeel.planning.levers.balance.tensor_width import TensorWidth
from evenkeel.planning.levers.drop_dead import DropDead
from evenkeel.planning.levers.lever import Lever
from evenkeel.planning.levers.migrate_stage import MigrateStage
from evenkeel.planning.levers.rebalance.depths import Depths
from evenkeel.planning.levers.rebalance.move_ranks import MoveRanks
from evenkeel.planning.levers.rebalance.pair_stages import PairStages
from evenkeel.planning.levers.rebalance.placement import Placement
from evenkeel.planning.levers.rebalance.rearrange import Rearrange
from evenkeel.planning.levers.regroup import Regroup
from evenkeel.planning.levers.rejoin import Rejoin
from evenkeel.planning.levers.schedule import Schedule
from evenkeel.planning.levers.sequence_mix import SequenceMix
from evenkeel.planning.levers.standby import Standby
from evenkeel.planning.levers.virtual_stages import VirtualStages

MEMBERS: tuple[Lever, ...] = (DropDead(), Rejoin())
"""Those that only say who takes part."""

STRUCTURAL: tuple[Lever, ...] = (
    *MEMBERS,
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

__all__ = ["MEMBERS", "REGISTRY", "STRUCTURAL", "TUNING", "Lever"]
