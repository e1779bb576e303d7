"""Kinds of values: the metavar of an option or argument.

Help pages print it, and the completions of all shells follow from it: a new option gets its completion from its kind.
Several kinds are joined by a bar (``CODE|SEVERITY``).
"""

# A name from a list: the lists are in tdbg.cli.generate.words.
LISTED = (
    "FLAG",
    "LEVEL",
    "MODE",
    "PRESET",
    "SEVERITY",
    "CODE",
    "ADVICE",
    "LOG_LEVEL",
    "FAULT",
    "IMAGE",
    "KIND",
    "SINK",
    "DEBUGGER",
    "WHEN",
)
# Completed by looking at the disk: any file, any folder, either, a run (a folder, or a name under ./tdbg_runs).
ON_DISK = ("FILE", "DIR", "PATH", "RUN")
# A whole command line of its own.
COMMAND = "COMMAND"
# Nothing to complete.
FREE = (
    "ACTION",
    "AGE",
    "BOUND",
    "EPOCHS",
    "SAMPLES",
    "FORMAT",
    "LAYERS",
    "PHASE",
    "POLICY",
    "PORT",
    "PREFIX",
    "REGEX",
    "SHARE",
    "SLICE",
    "TIME",
    "WEIGHT",
    "N",
    "PCT",
    "TEXT",
    "SIZE",
    "NAME",
    "SECONDS",
    "CLASS",
    "SEED",
    "RANGE",
    "GLOB",
    "FIELD",
    "KEY",
    "CONDITION",
    "SIGNAL",
    "URL",
)
