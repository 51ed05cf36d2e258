"""Levers that no engine here has, so that no live job is offered them: simulated machine parks may have them."""
