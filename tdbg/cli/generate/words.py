"""The values of each kind of option, for completions and the manual: (word, a line about it or nothing)."""

from tdbg.core import config
from tdbg.core.capture import DATAPOINT_DEBUGGERS, LAYER_DEBUGGERS
from tdbg.core.flags import FLAGS, PRESETS
from tdbg.core.profiling import KINDS
from tdbg.core.terminal import COLOR_MODES
from tdbg.pages.render.terminal_screen import IMAGES

Words = list[tuple[str, str]]


def list_words(kind: str) -> Words:
    """The words of a kind that is a list; none for what is found on disk, or free."""
    makers = {
        "LEVEL": _list_levels,
        "FLAG": _list_flags,
        "PRESET": _list_presets,
        "CODE": _list_codes,
        "ADVICE": _list_advice,
        "FAULT": _list_faults,
        "SINK": _sinks,
    }
    if kind in makers:
        return makers[kind]()
    choices = {
        "MODE": config.INJECTS,
        "SEVERITY": config.FAIL_ON,
        "LOG_LEVEL": config.LOG_LEVELS,
        "IMAGE": IMAGES,
        "KIND": tuple(KINDS),
        "DEBUGGER": (*LAYER_DEBUGGERS, *DATAPOINT_DEBUGGERS),
        "WHEN": COLOR_MODES,
    }
    return [(word, "") for word in choices.get(kind, ())]


LEVEL_LINES = {
    "off": "nothing is recorded; nothing of the program is hooked",
    "basic": "loss, learning rate, times, gradient norms, the first bad value; at most 1 % of the time",
    "advanced": "also statistics of module outputs, weights and gradients, and memory; at most 3 %",
    "extreme": "also every module each time, exact extremes, more probes, a history; at most 10 %",
}


def _list_levels() -> Words:
    return [(level, LEVEL_LINES[level]) for level in config.LEVELS]


def _list_flags() -> Words:
    families = dict.fromkeys(flag.name.rpartition(".")[0] for flag in FLAGS)
    above = [(family, f"all flags below {family}") for family in families if family]
    return above + [(flag.name, flag.summary) for flag in FLAGS]


def _list_presets() -> Words:
    return [(name, ", ".join(members)) for name, members in PRESETS.items()]


def _list_codes() -> Words:
    from tdbg.rules import RULES

    return [(rule.code, rule.title) for rule in RULES]


def _list_advice() -> Words:
    """Of rules that speak when a command asks them: on metrics and on traces."""
    from tdbg.metrics.sanity import RULES as METRICS
    from tdbg.traces.rules import RULES as TRACES

    return [(rule.code, rule.title) for rule in METRICS] + [(rule.code, rule.title) for rule in TRACES]


def _list_faults() -> Words:
    from tdbg.cli.demo import FAULTS

    return [(fault, "") for fault in FAULTS]


def _sinks() -> Words:
    """What --to takes; other packages may add more."""
    from tdbg.metrics.sinks import SINKS

    return [(sink.name, "") for sink in SINKS if sink.takes_runs()]
