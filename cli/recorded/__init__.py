"""Commands that read what was recorded of a job."""
