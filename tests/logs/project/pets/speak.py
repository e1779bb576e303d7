"""The program's logging: a logger class of its own, a file per rank, helpers, and the truth for the tests."""

import contextlib
import json
import logging
import os

STATS = 15


class PetLogger(logging.Logger):
    """Has a method between debug and info."""

    def stats(self, message, *args, **kwargs):
        if self.isEnabledFor(STATS):
            self._log(STATS, message, args, **kwargs)


logging.setLoggerClass(PetLogger)
plain = logging.getLogger("pets.plain")


def get_rank():
    return int(os.environ.get("RANK", "0"))


def set_up(folder):
    os.makedirs(folder, exist_ok=True)
    logging.addLevelName(STATS, "STATS")
    root = logging.getLogger()
    root.setLevel(logging.DEBUG)
    file = logging.FileHandler(os.path.join(folder, f"train_rank{get_rank()}.log"), mode="w")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(file)


@contextlib.contextmanager
def quiet_package():
    """Only warnings from the package for a while."""
    package = logging.getLogger("pets")
    before = package.level
    package.setLevel(logging.WARNING)
    try:
        yield
    finally:
        package.setLevel(before)


def log_once_per_rank(message, *args):
    """Passes on what it is given."""
    plain.info(message, *args)


def record_truth(flag, text, logger, level):
    """The truth: a call behind ``flag`` was made; shown says whether the program's own log has it."""
    line = {"rank": get_rank(), "flags": flag.split(), "text": text, "shown": logger.isEnabledFor(level)}
    with open(os.path.join("out", f"truth{get_rank()}.jsonl"), "a") as file:
        file.write(json.dumps(line) + "\n")
