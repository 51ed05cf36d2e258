"""How much memory an object holds, with everything that can be reached from it and from nothing else than it."""

import gc
import sys
import types

import numpy as np

# What is there whether or not the object is.
_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, property)


def held_bytes(root: object) -> int:
    """Bytes of ``root`` and of what it refers to, each once; classes, functions and modules are nobody's."""
    seen: set[int] = set()
    waiting, total = [root], 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _SHARED):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        if isinstance(each, np.ndarray) and each.base is not None:
            waiting.append(each.base)  # a view keeps all of what it looks at
        waiting.extend(gc.get_referents(each))
    return total
