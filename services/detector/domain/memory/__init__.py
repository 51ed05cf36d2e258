"""How what is remembered is kept: fields that are state, and containers of a fixed size."""
