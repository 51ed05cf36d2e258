"""The ``evenkeel`` command: a noun, a verb, one file for each noun.

Data goes to standard output, as a table for people or as JSON for programs; everything else goes to standard error.
"""
