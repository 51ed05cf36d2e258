"""The processes of a run: the zygote, the ranks that it forks, the store's host, and what is told of them."""
