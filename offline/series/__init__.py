"""One series of iteration times, as from a file: is it slower than it was, and since when?"""
