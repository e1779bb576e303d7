"""What this machine is called and what it runs, without the time that `socket` and `platform` take for it."""

import os

USABLE_SIGNALS = ("USR1", "USR2", "WINCH", "URG", "IO", "XCPU", "PROF")


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


def is_signal_caught(number: int, pid: int | str = "self") -> bool:
    """True if a process has a handler for a signal, set by whatever code; False where the system does not say."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            mask = next((line.partition(":")[2] for line in file if line.startswith("SigCgt:")), "0")
        return bool(int(mask, 16) >> (number - 1) & 1)
    except (OSError, ValueError):
        return False


def find_signal_number(name: str) -> int:
    """The number of a signal that a program may handle without harm, by its name without SIG; 0 if there is none.

    Signals that end or stop a process by rule, and those of faults, are none of them.
    """
    import signal

    first, last = getattr(signal, "SIGRTMIN", 0), getattr(signal, "SIGRTMAX", 0)
    base, _, offset = name.partition("+")
    if base == "RTMIN" and first:
        number = first + int(offset) if offset.isdecimal() else first if not offset else 0
        return int(number) if first <= number <= last else 0
    return int(getattr(signal, f"SIG{name}", 0)) if name in USABLE_SIGNALS else 0
