"""What a layout costs: time, memory, links, risks, and what a plan is worth."""
