"""How fast the services are, and what the SDK costs: what ranks send, without servers, and as the services run."""
