"""Process groups by epoch: built, waited for and abandoned without ever blocking the training thread for good."""

from evenkeel.trainer_sdk.groups.building.builder import EpochGroups, GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.building.side_group import SideGroup
from evenkeel.trainer_sdk.groups.errors import Interrupted, PeerLost
from evenkeel.trainer_sdk.groups.group import Group, Pending
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter

__all__ = [
    "EpochGroups",
    "Group",
    "GroupBuilder",
    "GroupSpec",
    "Interrupted",
    "PeerLost",
    "Pending",
    "Rendezvous",
    "SideGroup",
    "Waiter",
]
