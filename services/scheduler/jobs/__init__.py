"""What becomes of a job when something happens: a pure machine. The service around it carries its steps out."""
