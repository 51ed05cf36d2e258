"""Commands that answer what would be: plans, pipelines, fleets."""
