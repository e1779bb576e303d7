"""`tdbg trace`: traces of torch.profiler, offline."""

from tdbg.core.command_spec import Group, make_loader

HELP = """Read traces of torch.profiler: where time and memory went.

    A trace is what `tdbg profile` or torch.profiler exported, a .json or .json.gz of any size. It is read where it
    lies, without torch, on any machine.

    Examples:
        tdbg trace show
        tdbg trace show trace.json.gz
    """
NAMES = ("show", "advise", "flame", "compare", "slice")  # the order of the help page; a file each
COMMAND = Group(HELP, NAMES, make_loader(__name__))
