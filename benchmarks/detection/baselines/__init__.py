"""Published detectors, each in one file, written from its description; deviations are named in the docstring."""
