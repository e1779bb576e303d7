"""The epoch that a folder's name tells: pages of epoch N lie below ``epoch_N``. Standard library alone."""

import re
from pathlib import Path, PurePath

EPOCH = re.compile(r"epoch_(\d{1,12})")


def epoch_of(path: PurePath) -> int | None:
    """The epoch whose folder a page, or a folder of pages, lies in; of several the innermost."""
    whole = path.absolute() if isinstance(path, Path) else path
    match = next((match for part in reversed(whole.parts) if (match := EPOCH.fullmatch(part))), None)
    return int(match[1]) if match else None
