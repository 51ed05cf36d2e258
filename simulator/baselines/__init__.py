"""Published systems and ours behind one port, one file each: source and deviations are in each file's docstring."""

from simulator.baselines.checkpoint_restart import CheckpointRestart
from simulator.baselines.drop_replica import DropReplica
from simulator.baselines.evenkeel import Evenkeel, EvenkeelMix
from simulator.baselines.ft_hsdp import FtHsdp
from simulator.baselines.greyhound import Greyhound
from simulator.baselines.no_mitigation import NoMitigation
from simulator.baselines.ntp import NonuniformTensor
from simulator.baselines.oobleck import Oobleck
from simulator.baselines.recover import ReCoVer
from simulator.baselines.recycle import ReCycle
from simulator.baselines.resihp import ResiHP
from simulator.baselines.strengthened_oobleck import StrengthenedOobleck
from simulator.baselines.strengthened_recycle import StrengthenedReCycle
from simulator.baselines.synchronous_restart import SynchronousRestart
from simulator.fleet.strategy import Strategy

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        NoMitigation(),
        CheckpointRestart(),
        SynchronousRestart(),
        DropReplica(),
        FtHsdp(),
        ReCoVer(),
        ReCycle(),
        StrengthenedReCycle(),
        Oobleck(),
        StrengthenedOobleck(),
        Greyhound(),
        NonuniformTensor(),
        ResiHP(),
        Evenkeel(),
        EvenkeelMix(),
    )
}

__all__ = ["STRATEGIES"]
