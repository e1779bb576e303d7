"""The name of this machine, as `socket.gethostname` has it, without the time that its import takes."""

import os


def host_name() -> str:
    """The host name."""
    return os.uname().nodename
