"""One question each: links, hangs, other kinds, prediction, long runs, small jobs, false suspicions."""
