"""What runs inside the training process: ``import evenkeel``, then ``start``; see :mod:`.api`."""
