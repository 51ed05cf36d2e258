"""Commands that ask the fleet API: jobs, incidents, verdicts, plans."""
