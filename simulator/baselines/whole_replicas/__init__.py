"""Systems in which a replica leaves as a whole."""
