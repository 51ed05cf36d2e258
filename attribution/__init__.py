"""What-if attribution: how long an iteration would have taken, had some of its operations been as good as the others.

Pure: tables of operations in, numbers out. Definitions are those of "Understanding Stragglers in Large Model Training
Using What-if Analysis" (OSDI'25, arXiv 2505.05713). Operations that were not recorded (CPU work, data loading) are gaps
of the recording: they count as ``launch_slowdown`` and are not attributed to anybody.
"""

from evenkeel.attribution.analysis import Attribution, analyze
from evenkeel.attribution.operations import OperationError, Operations

__all__ = ["Attribution", "OperationError", "Operations", "analyze"]
