"""Waking up inside the user's process: what to wait for, and the boot file that waits.

Every rank imports this file, so it imports nothing.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tdbg.core.config import Settings

# What takes debug flags into the program's own config: watched module -> handler, by `--inject` mode.
TAKERS: "dict[str, dict[str, str]]" = {
    "yacs": {"yacs.config": "tdbg.inject.on.yacs_config"},
    "hydra": {
        "omegaconf": "tdbg.inject.on.omegaconf_",
        "hydra._internal.config_loader_impl": "tdbg.inject.on.hydra_",
    },
    "argparse": {"argparse": "tdbg.inject.on.argparse_", "jsonargparse": "tdbg.inject.on.jsonargparse_"},
    "argv": {"argparse": "tdbg.inject.on.argparse_"},
    "env": {},  # the program asks: tdbg.flag()
    "none": {},
}
AUTO = ("yacs", "hydra", "argparse", "env")  # argv is left out: it may upset a program that does not expect it
# Trainers that know how many steps they mean to take.
TRAINERS = (
    "transformers.trainer_callback",
    "lightning.pytorch.loops.fit_loop",
    "pytorch_lightning.loops.fit_loop",
)


def watch_table(settings: "Settings") -> "dict[str, str]":
    """The modules a process of the run waits for, each with the module whose ``arrive()`` gets it."""
    table = {"torch": "tdbg.inject.on.torch_"}
    if settings.level != "off":
        table.update(dict.fromkeys(TRAINERS, "tdbg.inject.on.trainers"))
    if settings.inject != "none" or settings.forbid_flags:
        for mode in (*AUTO, settings.inject):  # also without flags: the program's config may have some on of itself
            table.update(TAKERS.get(mode, {}))
    if settings.preflight:
        table["os"] = "tdbg.inject.redirects"
    if settings.log_level:
        table["logging"] = "tdbg.inject.console_level"
    return table


def boot_source(run_dir: str, tdbg_parent: str, watch: "dict[str, str]") -> str:
    """The text of a run's ``boot/sitecustomize.py``: the template with its constants filled in."""
    from pathlib import Path

    text = (Path(__file__).parent / "boot_template.py").read_text(encoding="utf-8")
    values = {
        'RUN_DIR = ""': f"RUN_DIR = {run_dir!a}",
        "IDS = (-1, -1)": f"IDS = {_mapped_ids(run_dir)}",
        'TDBG_PARENT = ""': f"TDBG_PARENT = {tdbg_parent!a}",
        'WATCH: "dict[str, str]" = {}': f"WATCH = {watch!a}",
    }
    for empty, filled in values.items():
        before, found, after = text.partition(f"\n{empty}")
        if not found:
            raise ValueError(f"the boot template has no line {empty}")
        text = f"{before}\n{filled}{after}"
    return text


def _mapped_ids(run_dir: str) -> "tuple[int, int]":
    """This user and the owner of the run directory, where ids are mapped so that they differ."""
    import os

    try:
        ids = os.geteuid(), os.stat(run_dir).st_uid
    except OSError:
        return -1, -1
    return ids if ids[0] != ids[1] else (-1, -1)
