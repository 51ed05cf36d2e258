"""Where torch's collectives come in: its type stubs lack most of them, so they are ``Any`` from here on."""

from typing import Any

from torch import distributed

c10d: Any = distributed
"""``torch.distributed``, untyped."""

Backend = Any
"""A ``ProcessGroupGloo`` or ``ProcessGroupNCCL``."""

Store = Any
"""A ``torch.distributed.Store``."""
