"""The rules of the telemetry service: pure, time and offsets are passed in, payloads carried and never looked at."""
