"""Processes of the stack: started, watched, kept, ended."""
