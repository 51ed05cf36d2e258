"""Published systems and ours behind one port, one file each: source and deviations are in each file's docstring."""

from evenkeel.simulator.baselines.checkpoint_restart import CheckpointRestart
from evenkeel.simulator.baselines.drop_replica import DropReplica
from evenkeel.simulator.baselines.evenkeel import Evenkeel, EvenkeelMix
from evenkeel.simulator.baselines.ft_hsdp import FtHsdp
from evenkeel.simulator.baselines.greyhound import Greyhound
from evenkeel.simulator.baselines.no_mitigation import NoMitigation
from evenkeel.simulator.baselines.ntp import NonuniformTensor
from evenkeel.simulator.baselines.oobleck import Oobleck
from evenkeel.simulator.baselines.recover import ReCoVer
from evenkeel.simulator.baselines.recycle import ReCycle
from evenkeel.simulator.baselines.resihp import ResiHP
from evenkeel.simulator.baselines.strengthened_oobleck import StrengthenedOobleck
from evenkeel.simulator.baselines.strengthened_recycle import StrengthenedReCycle
from evenkeel.simulator.baselines.synchronous_restart import SynchronousRestart
from evenkeel.simulator.fleet.strategy import Strategy

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
