"""Which debug flags guard each line of a program, read from its syntax trees. Nothing is executed.

One file is read into `Facts` (`facts`): lines under a guard, functions, who refers to them, log calls. `reader` walks its
statements; what a name stands for is known to `names`, what a test says of flags to `asking`, what a log call says to
`messages`. `link` joins the facts of a package: a function that is called only under a guard is guarded itself. `files`
goes through a source tree and keeps facts on disk. Standard library alone: a rank reads too.
"""
