"""What is trained: the model by shards of stages, its data and its optimizer, and the run that nothing happens to."""
