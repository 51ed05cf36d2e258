"""How long pipelines take: makespans, routes between replicas, several stages a rank."""
