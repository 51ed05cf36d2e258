"""Which models replicas can train. Pure: looks at a model, and changes nothing."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

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
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats:
            raise ValueError(
                f"{each or name} is a {type(module).__name__}, whose statistics would be those of one replica's part "
                "of a batch: use GroupNorm or LayerNorm, or freeze it with eval() before run.replicate()"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ValueError(f"{each or name} has sparse gradients, which are not exchanged: use sparse=False")
