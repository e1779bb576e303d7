"""The boot file's bytecode, written once so that no process of the run has to compile it."""

import contextlib
import importlib.util
import marshal
from importlib.machinery import SourceFileLoader

from tdbg.core import run_files


def precompile_boot_file(boot_file: str) -> None:
    """Write the boot file's bytecode beside it, whole or not at all; without it the file runs all the same.

    Where PYTHONDONTWRITEBYTECODE is set, as in many container images, every process would compile it anew:
    1.26 times the bare start instead of 1.03. Where there is no room for all of it, processes must not write it either:
    Python keeps what did fit, cannot read it, and then starts without any sitecustomize. A folder in its place prevents
    that.
    """
    final = importlib.util.cache_from_source(boot_file)
    try:
        run_files.write_atomically(final, compile_to_bytecode(boot_file), makes=True)
    except OSError:
        with contextlib.suppress(OSError):
            run_files.make_folder(final)


def compile_to_bytecode(source_file: str) -> bytes:
    """What Python keeps of a source file in its cache: `py_compile` gives it to a file alone, which may be cut short."""
    loader = SourceFileLoader("sitecustomize", source_file)
    stat = loader.path_stats(source_file)
    code = loader.source_to_code(loader.get_data(source_file), source_file)
    header = (0, int(stat["mtime"]), int(stat["size"]))  # 0: valid while the source has this time and size
    words = b"".join((word & 0xFFFFFFFF).to_bytes(4, "little") for word in header)
    return importlib.util.MAGIC_NUMBER + words + marshal.dumps(code)
