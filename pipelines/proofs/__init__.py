"""What no plan can beat: lower bounds, and exact plans of small cases by CP-SAT."""
