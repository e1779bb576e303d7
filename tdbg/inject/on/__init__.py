"""One file per watched module: ``arrive(module)`` gets it as soon as the program has imported it.

A handler is loaded in every process of the run that imports its module, so it imports next to nothing
until there is something to do.
"""
