"""Systems whose pipelines take over one another's work, or are cut anew."""
