"""What is told of a run: expectations, figures, pictures, the page."""
