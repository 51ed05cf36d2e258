"""One job that does not exist, operation by operation: what each of its ranks would measure."""
