"""The fleet API: who may ask, what is asked, and answers on the wire."""
