"""``evenkeel launch``: an agent on each host starts a script's ranks, watches them, and replaces them."""
