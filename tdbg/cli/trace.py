"""`tdbg trace`: traces of torch.profiler, offline."""

from tdbg.cli import options
from tdbg.core.asked import load
from tdbg.traces import commands

app = options.group(
    """Read traces of torch.profiler: where time and memory went.

    A trace is what `tdbg profile` or torch.profiler exported, a .json or .json.gz of any size. It is read where it
    lies, without torch, on any machine.

    Examples:
        tdbg trace show
        tdbg trace show trace.json.gz
    """
)

for _name in commands.NAMES:
    options.add(app, _name, load(commands.__name__, _name))
