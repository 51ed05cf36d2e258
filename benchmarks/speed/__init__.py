"""Parts of ``benchmarks.telemetry_path``: what ranks send, the services without servers, the services as they run."""
