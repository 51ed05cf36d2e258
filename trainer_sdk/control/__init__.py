"""The rank controller: a gRPC server whose handlers only enqueue, and the mailbox that the training thread reads.

Loaded before gRPC, it switches gRPC's fork handlers off: with them, DataLoader workers that are forked while the
controller has traffic crash now and then.
"""

import os
import sys

GRPC_CAME_FIRST = "grpc" in sys.modules and "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
"""Somebody loaded gRPC, fork handlers and all, before this package could say anything."""

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
