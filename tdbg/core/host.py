"""What this machine is called and what it runs, without the time that `socket` and `platform` take for it."""

import os


def host_name() -> str:
    """The host name."""
    return os.uname().nodename


def platform_name() -> str:
    """Kernel, machine and C library as `platform.platform` has them, which starts a process to ask for the processor."""
    kernel = os.uname()
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") if kernel.sysname == "Linux" else None
    except (OSError, ValueError):  # another C library
        libc = None
    if libc is None:
        import platform

        return platform.platform()
    return f"Linux-{kernel.release}-{kernel.machine}-with-{libc.replace(' ', '')}"
