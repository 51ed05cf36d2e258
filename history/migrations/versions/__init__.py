"""One module per migration, in order. They import no application code, so that they mean the same for ever."""
