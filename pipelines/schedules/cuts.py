"""Partitions that do not look at costs."""


def equal_partition(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """About the same number of layers for each stage; the first stages take the remainder.

    Raises:
        ValueError: There are fewer layers than stages.
    """
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"{num_layers} layers cannot make {num_stages} stages of one layer or more")
    size, rest = divmod(num_layers, num_stages)
    return tuple(size + (stage < rest) for stage in range(num_stages))
