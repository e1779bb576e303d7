"""Every setting says what a stranger's configuration file could do with it."""

import re
from dataclasses import fields

from tdbg.core.config import ACT, LOCAL, PLACE, SETTING_KINDS, Settings

# Words in the help of a setting that runs, sends, loads or places something.
SUSPICIOUS = re.compile(
    r"\b(urls?|upload\w*|commands?|runs? a|exec\w*|module|package|plugin|import\w*|load\w*|debugger|class|send\w*|"
    r"directory|folder|path|file)\b",
    re.IGNORECASE,
)
# Those whose help has such a word and that act on nothing: why.
HARMLESS = {
    "name": "the last part of a path: no slash is allowed in it",
    "tee": "a copy in the run directory",
    "stack_signal": "the name of a signal that can be caught, and it goes only to ranks that wait for it",
    "step_optimizer": "a class name that is compared, and never looked up",
}


def test_every_setting_has_a_kind() -> None:
    kinds = {item.name: item.metadata.get("kind") for item in fields(Settings)}
    assert not {name: kind for name, kind in kinds.items() if kind not in SETTING_KINDS}


def test_a_setting_that_sounds_like_acting_is_of_a_kind_that_counts_from_the_user_alone() -> None:
    local = {item.name: item.metadata["help"] for item in fields(Settings) if item.metadata["kind"] == LOCAL}
    sounding = {name for name, text in local.items() if SUSPICIOUS.search(text)}
    assert sounding == set(HARMLESS), "is it LOCAL? then say here why"
    acting = {item.name for item in fields(Settings) if item.metadata["kind"] == ACT}
    assert acting == {"capture_upload", "debugger", "on_finding", "notify", "to"}
    assert {item.name for item in fields(Settings) if item.metadata["kind"] == PLACE} == {"run_dir", "share"}
