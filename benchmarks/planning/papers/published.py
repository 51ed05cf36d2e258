"""Published figures of the systems that are re-implemented here; ResiHP's (arXiv 2605.06374 v2) where nothing is said.

Percentages of Table 6 are samples per second over the fault-free ones. Fig. 9 is given as speedup over doing nothing;
its label order was inferred from the figure, and its severities do not hold for every model (some speedups times the
stated residual exceed fault-free).
"""

FAULT_FREE = {
    "llama2-7b": 8.22,
    "llama2-13b": 8.05,
    "llama2-30b": 5.05,
    "qwen2.5-7b": 7.07,
    "qwen2.5-14b": 5.89,
    "qwen2.5-32b": 5.59,
}

INTERVALS_SECONDS = (7200.0, 3600.0, 1800.0)

TABLE_6: dict[str, dict[str, tuple[float | None, float | None, float | None]]] = {
    "Oobleck": {
        "llama2-7b": (6.04, 4.59, None),
        "llama2-13b": (6.47, 4.79, None),
        "llama2-30b": (4.48, 3.31, None),
        "qwen2.5-7b": (5.37, 4.37, None),
        "qwen2.5-14b": (4.74, 3.65, None),
        "qwen2.5-32b": (4.47, 3.42, None),
    },
    "ReCycle": {
        "llama2-7b": (4.16, 3.94, None),
        "llama2-13b": (4.91, 4.66, None),
        "llama2-30b": (3.48, 3.36, None),
        "qwen2.5-7b": (4.37, 4.23, None),
        "qwen2.5-14b": (3.73, 3.58, None),
        "qwen2.5-32b": (3.58, 3.47, None),
    },
    "ResiHP": {
        "llama2-7b": (7.55, 6.48, 5.46),
        "llama2-13b": (7.95, 7.23, 5.95),
        "llama2-30b": (4.80, 4.38, 3.53),
        "qwen2.5-7b": (6.57, 5.95, 5.62),
        "qwen2.5-14b": (5.59, 5.06, 4.45),
        "qwen2.5-32b": (4.80, 4.23, 3.86),
    },
}

SEVERITIES = {"W": 0.65, "M": 0.45, "S": 0.30}
"""Throughput that is left when nothing is done."""

FIG_9: dict[str, dict[str, tuple[float | None, float, float]]] = {
    "ResiHP": {
        "llama2-7b": (1.81, 2.47, 3.31),
        "llama2-13b": (1.66, 2.40, 3.20),
        "llama2-30b": (1.52, 2.02, 2.51),
        "qwen2.5-7b": (1.32, 1.76, 2.13),
        "qwen2.5-14b": (1.48, 1.83, 2.23),
        "qwen2.5-32b": (1.51, 1.74, 1.99),
    },
    "Greyhound": {
        "llama2-7b": (None, 2.01, 2.66),
        "llama2-13b": (None, 1.80, 2.23),
        "llama2-30b": (None, 1.45, 1.72),
        "qwen2.5-7b": (None, 1.44, 1.70),
        "qwen2.5-14b": (None, 1.41, 1.74),
        "qwen2.5-32b": (None, 1.26, 1.42),
    },
}

FIG_10_OVER = {
    ("ResiHP", "ReCycle"): (1.48, 4.39),
    ("ResiHP", "strengthened ReCycle"): (1.22, 4.32),
    ("ResiHP", "strengthened Oobleck"): (1.04, 3.57),
    ("strengthened ReCycle", "ReCycle"): (0.97, 1.04),
}
"""(system, over whom): the least and the largest ratio of throughputs over the six jobs."""

ALARMS_PER_TRACE = {"ResiHP": 0.0, "Greyhound": 3.7}
"""Table 5, small job: false alarms of the detectors; both find every slowdown."""

NTP_LOST = {"dropping": 12.0, "NTP": 3.0, "NTP-PW": 1.0}
"""NTP (arXiv 2504.06095): percent of throughput lost at most, 4e-3 of 32 K devices dead, domains of 32."""

FT_HSDP_EFFECTIVE = {"synchronous restart (published 44)": 44.0, "FT-HSDP (published 80)": 80.0}
"""FT-HSDP (arXiv 2602.00277): percent of time that is effective, some 98 K devices, a failure every 18 minutes."""


def table_6_fraction(system: str, model: str, column: int) -> float | None:
    """Published throughput over fault-free; None where the system aborted."""
    value = TABLE_6[system][model][column]
    return None if value is None else value / FAULT_FREE[model]
