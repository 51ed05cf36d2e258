"""Sizes of micro-batches: which documents go where, so that unequal replicas end together."""
