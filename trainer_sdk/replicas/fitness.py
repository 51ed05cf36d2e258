"""Which models replicas can train. Pure: looks at a model, and changes nothing."""

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from evenkeel.trainer_sdk.replicas.buckets import local

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check_model(model: nn.Module) -> None:
    """Whether replicas of this model do what one process of it does.

    Raises:
        ValueError: They do not, or it cannot be trained at all; one line with what to do.
    """
    name = type(model).__name__
    if isinstance(model, _WRAPPERS):
        raise ValueError(f"{name} exchanges gradients itself: give run.replicate() the module inside")
    parameters = dict(model.named_parameters())
    if not any(each.requires_grad for each in parameters.values()):
        raise ValueError(f"{name} has no parameter that needs a gradient: nothing can be trained")
    for each, parameter in parameters.items():
        if is_lazy(parameter) or parameter.is_meta:
            raise ValueError(f"parameter {each} has no values yet: run.replicate() comes after they are set")
        if parameter.requires_grad and not parameter.is_floating_point():
            raise ValueError(
                f"parameter {each} is of {parameter.dtype}: gradients of real numbers can be exchanged only"
            )
    devices = {str(parameter.device) for parameter in parameters.values()}
    if len(devices) > 1:
        raise ValueError(f"{name} is on {', '.join(sorted(devices))}: one process of a replica has one device")
    for each, module in model.named_modules():
        if isinstance(module, _NormBase) and module.training and module.track_running_stats:
            raise ValueError(
                f"{each or name} is a {type(module).__name__}, whose statistics would be those of one replica's part "
                "of a batch: use GroupNorm or LayerNorm, or freeze it with eval() before run.replicate()"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ValueError(f"{each or name} has sparse gradients, which are not exchanged: use sparse=False")


def advice(model: nn.Module, num_ranks: int) -> str:
    """One line for whoever has ranks in a replica that seem to compute the same; empty where they do not.

    Args:
        model: As one rank has it.
        num_ranks: Of the replica.
    """
    if num_ranks == 1 or any(local(each) is not each for each in model.parameters()):
        return ""
    return (
        f"each of this replica's {num_ranks} ranks holds all of the model, so all compute the same unless it is split "
        "by hand: make each a replica of its own, see docs/on_your_loop.md, or shard the model over run.mesh"
    )
