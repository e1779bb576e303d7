"""Programs made at random whose log calls stand behind flags in every style, and that know which flags those are.

Before each record the program notes the flags that guard the call, by construction of the program, and the text. What
tdbg takes from the source, or writes down at the call, can be compared with that.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

FLAGS = ("AMP", "LR", "GRADIENTS", "OWN.ALPHA", "OWN.BETA")
WORDS = """
loss gradient norm batch epoch weight decay sample labels mask tensor shape queue worker seed scaler momentum buffer cache
token window stride kernel anchor target logits prior masked fused shard bucket
"""
HEADERS = {
    "full": "%(asctime)s - %(name)s - %(levelname)s - %(message)s",
    "level": "%(levelname)s:%(name)s:%(message)s",
    "none": "%(message)s",
}
PRELUDE = """
import argparse, contextlib, functools, json, logging, sys
from types import SimpleNamespace
logger = logging.getLogger("train")
_notes = open(sys.argv[2], "w")
def note(style, flags, text):
    _notes.write(json.dumps([style, flags, text]) + "\\n")
class Section(SimpleNamespace):
    def get(self, name, default=None):
        return getattr(self, name, default)
    def __contains__(self, name):
        return hasattr(self, name) and getattr(self, name)
    def __getitem__(self, name):
        return getattr(self, name)
cfg = Section(DEBUG=Section(AMP=True, LR=True, GRADIENTS=True, OWN=Section(ALPHA=True, BETA=True)))
args = SimpleNamespace(debug_amp=True, debug_lr=True, debug_gradients=True)
def check_debug_flag(config, name):
    found = config.DEBUG
    for word in name.removeprefix("DEBUG.").split("."):
        found = getattr(found, word)
    return found
if sys.argv[3:]:
    import torch
level, yes, no, some = "INFO", len(sys.argv) > 1, len(sys.argv) > 9, [1, 2]
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(logging.Formatter(sys.argv[1]))
logging.basicConfig(level=logging.DEBUG, handlers=[handler])
def log_all(*texts):
    if yes:
        print(*texts)
def log_first(msg, *args):
    if yes: logger.info(msg, *args)
STATE = False
def set_state(value):
    global STATE
    STATE = value
"""


class Program:
    """One program. source: its text; lines are added at the depth of `indent`."""

    def __init__(self, seed: int, functions: int = 12) -> None:
        self.random = random.Random(seed)
        self.off = [flag for flag in FLAGS if self.random.random() < 0.15]
        prelude = PRELUDE
        for flag in self.off:
            leaf = flag.rpartition(".")[2]
            prelude = prelude.replace(f"{leaf}=True", f"{leaf}=False").replace(f"{leaf.lower()}=True", f"{leaf.lower()}=False")  # fmt: skip
        self.lines = prelude.splitlines()
        self.indent = 0
        self.count = 0
        self.texts: list[str] = []
        self.words = WORDS.split()
        self._style = ""
        names = [self._add_function() for _ in range(functions)]
        for name in names:
            self.add_lines(f"{name}()")

    @property
    def source(self) -> str:
        """The text of the program."""
        return "\n".join(self.lines) + "\n"

    def add_lines(self, *lines: str) -> None:
        """Append lines at the current depth."""
        self.lines += ["    " * self.indent + line for line in lines]

    def add_block(self, head: str, body: Callable[[], None]) -> None:
        """A statement with a block."""
        self.add_lines(head)
        self.indent += 1
        body()
        self.indent -= 1

    def make_name(self, stem: str) -> str:
        """A name that nothing else has."""
        self.count += 1
        return f"{stem}_{self.count}"

    # guards

    def choose_flag(self, *, on: bool = False) -> tuple[str, str]:
        """A flag, and an expression that asks for it. on: one without which the program could not go on."""
        flag = self.random.choice([flag for flag in FLAGS if flag not in self.off] if on else FLAGS)
        forms = [f"cfg.DEBUG.{flag}", f"check_debug_flag(cfg, 'DEBUG.{flag}')", f"bool(cfg.DEBUG.{flag})"]
        if "." not in flag:
            forms += [f"cfg['DEBUG']['{flag}']", f"getattr(cfg.DEBUG, '{flag}', False)", f"cfg.DEBUG.get('{flag}')"]
            forms += [f"args.debug_{flag.lower()}", f"'{flag}' in cfg.DEBUG"]
        return flag, self.random.choice(forms)

    def _add_function(self) -> str:
        name = self.make_name("work")
        style = self.random.choice(STYLES)
        self._style = style.__name__.strip("_")

        def add_function_body() -> None:
            for _ in range(self.random.randint(0, 2)):
                self.add_record([])
            style(self)

        self.add_block(f"def {name}():", add_function_body)
        return name

    # records

    def make_text(self) -> str:
        """A text that no other has, but perhaps much like one: with a word before it or behind it."""
        while True:
            if self.texts and self.random.random() < 0.2:
                near = self.random.choice(self.texts)
                word = self.random.choice(self.words)
                found = self.random.choice((f"{word} {near}", f"{near} {word}"))
            else:
                found = " ".join(self.random.sample(self.words, self.random.randint(2, 4)))
            if found not in self.texts and len(found.split()) < 7:
                self.texts.append(found)
                return found

    def make_message(self) -> tuple[str, str]:
        """A message of one or several lines, as the expression of its text, and how it is made: a format and its value."""
        lines = [self.make_text()]
        if self.random.random() < 0.4:
            for _ in range(self.random.randint(1, 4)):
                lines.append(
                    self.random.choice(("", "---", self.make_text(), self.make_text(), f"  {self.make_text()}"))
                )
            lines[-1] = lines[-1] or self.make_text()
            if self.random.random() < 0.2:
                lines.insert(0, "")
        gap = self.random.randrange(len(lines)) if self.random.random() < 0.6 else -1
        value = self.random.choice(("3", "0.25", "[1, 2]", "'word'"))
        if self.random.random() < 0.1:  # a value of several lines, alone on its line
            rows = [f"{self.random.choice(self.words)} {self.random.randrange(99)}" for _ in range(3)]
            return "\n".join([self.make_text(), "@"]), f"{chr(92)}n".join(rows).join("''")
        if gap >= 0 and lines[gap] not in ("", "---"):
            lines[gap] += self.random.choice((" @", " @ of it", ": @"))
        return "\n".join(lines), value

    def add_record(self, flags: list[str]) -> None:
        """A call that logs or prints, with the note of it."""
        template, value = self.make_message()
        has_gap = "@" in template
        text = template.replace("@", "{}")
        whole = f"{text!r}.format({value})" if has_gap else repr(text)
        forms = [whole]
        if has_gap:
            forms.append(f"{template.replace('@', '%s')!r} % ({value},)")
            if "\\" not in value:  # before Python 3.12 an f-string's expression has none
                forms.append("f" + repr(template.replace("@", "{" + value.replace("'", '"') + "}")))
        said = self.random.choice(forms)
        lazy = f"{template.replace('@', '%s')!r}, {value}" if has_gap else said
        self.add_lines(f"note({self._style!r}, {sorted(set(flags))}, {whole})")
        call = self.random.choice(CALLS)
        name = self.make_name("say")
        self.add_lines(*(line.replace("SAID", said).replace("LAZY", lazy).replace("NAME", name) for line in call))

    def add_records(self, flags: list[str]) -> None:
        """One or two of them."""
        for _ in range(self.random.randint(1, 2)):
            self.add_record(flags)


CALLS = (
    ("print(SAID)",),
    ("print(SAID)",),
    ("logger.info(LAZY)",),
    ("logger.info(SAID)",),
    ("logger.debug(LAZY)",),
    ("logging.getLogger('x').log(logging.INFO, LAZY)",),
    ("getattr(logger, level.lower())(LAZY)",),
    ("getattr(logger, 'warning')(SAID)",),
    ("NAME = logger.info", "NAME(LAZY)"),
    ("NAME = functools.partial(print, flush=True)", "NAME(SAID)"),
    ("NAME = functools.partial(logger.log, 20)", "NAME(LAZY)"),
    ("{'INFO': logger.info, 'DEBUG': logger.debug}[level](LAZY)",),
    ("NAME = {'INFO': logger.info}", "NAME.get(level, print)(SAID)"),
    ("NAME = print if no else logger.error", "NAME(SAID)"),
    ("NAME = SAID", "logger.info(NAME)"),
    ("NAME = lambda text: logger.info(text)", "NAME(SAID)"),
    ("yes and print(SAID)",),
    ("print(SAID) if yes else None",),
    ("print(SAID, flush=True)",),
    ("log_all(SAID)",),
    ("log_first(SAID)",),
    ("NAME = functools.partial(getattr(logger, 'info'))", "NAME(SAID)"),
    ("NAME = SAID", "NAME = 'tdbg ' + NAME if no else NAME", "print(NAME)"),
    ("for NAME in (print,): NAME(SAID)",),
    ("logger.log(level=10, msg=SAID)",),
)


def _direct(made: Program) -> None:
    flag, ask = made.choose_flag()
    made.add_block(f"if {ask}:", lambda: made.add_records([flag]))
    made.add_record([])


def _alias(made: Program) -> None:
    flag, ask = made.choose_flag()
    name = made.make_name("dbg")
    made.add_lines(f"{name} = {ask}")
    made.add_record([])
    made.add_block(f"if {name}:", lambda: made.add_records([flag]))


def _reassigned(made: Program) -> None:
    for _ in range(made.random.randint(2, 3)):
        flag, ask = made.choose_flag()
        made.add_lines(f"dbg = {ask}")
        made.add_block("if dbg:", lambda flag=flag: made.add_records([flag]))  # type: ignore[misc]
    made.add_lines("dbg = yes")
    made.add_block("if dbg:", lambda: made.add_record([]))


def _switched(made: Program) -> None:
    flag, ask = made.choose_flag()
    made.add_lines("dbg = False")
    made.add_block(f"if {ask}:", lambda: made.add_lines("dbg = True"))
    made.add_block("for i in some:", lambda: made.add_block("if dbg:", lambda: made.add_records([flag])))
    made.add_record([])


def _early(made: Program) -> None:
    flag, ask = made.choose_flag()
    leave = made.random.choice(
        (
            ("    return",),
            ("    if yes: return", "    else: return"),
            ("    with contextlib.nullcontext():", "        return"),
            ("    try: pass", "    finally: return"),
            ("    match some:", "        case _: return"),
            ("    while True: return",),
        )
    )
    made.add_record([])
    made.add_lines(f"if not ({ask}):", *leave)
    made.add_records([flag])


def _early_else(made: Program) -> None:
    flag, ask = made.choose_flag()
    made.add_lines(f"if {ask}: pass", "elif no: return", "else: return")
    made.add_records([flag])


def _early_try(made: Program) -> None:
    flag, ask = made.choose_flag()

    def add_try_body() -> None:
        made.add_lines(f"if not ({ask}): return")
        made.add_records([flag])

    made.add_block("try:", add_try_body)
    made.add_lines("except ValueError: pass")
    made.add_records([flag])


def _quiet(made: Program) -> None:
    flag, ask = made.choose_flag()
    made.add_lines(f"quiet = not ({ask})")
    made.add_record([])
    made.add_lines("if quiet: return")
    made.add_records([flag])


def _loop_exit(made: Program) -> None:
    flag, ask = made.choose_flag()

    def add_loop_body() -> None:
        made.add_record([])
        made.add_lines(f"if not ({ask}): {made.random.choice(('continue', 'break'))}")
        made.add_records([flag])

    made.add_block(made.random.choice(("for i in some:", "for i in range(2):")), add_loop_body)
    made.add_record([])


def _endless(made: Program) -> None:
    flag, ask = made.choose_flag(on=True)
    made.add_block("while True:", lambda: (made.add_record([]), made.add_lines(f"if {ask}: break"))[0])
    made.add_records([flag])


def _nested(made: Program) -> None:
    first, ask = made.choose_flag()
    second, again = made.choose_flag()

    def add_inner_block() -> None:
        made.add_block(f"if {again}:", lambda: made.add_records([first, second]))
        made.add_record([first])

    made.add_block(f"if {ask}:", add_inner_block)
    made.add_record([])


def _nested_early(made: Program) -> None:
    first, ask = made.choose_flag()
    second, again = made.choose_flag()

    def add_inner_block() -> None:
        made.add_lines(f"if not ({again}): return")
        made.add_records([first, second])

    made.add_block(f"if {ask} and yes:", add_inner_block)


def _several(made: Program) -> None:
    first, ask = made.choose_flag()
    second, again = made.choose_flag()
    forms = (f"{ask} or {again}", f"any([{ask}, {again}])", f"yes and ({ask} or {again})", f"all([{ask}, {again}])")
    made.add_block(f"if {made.random.choice(forms)}:", lambda: made.add_records([first, second]))
    made.add_block(f"if not ({ask}):", lambda: made.add_record([]))
    made.add_block("else:", lambda: made.add_record([first]))


def _match_statement(made: Program) -> None:
    flag, ask = made.choose_flag()

    def cases() -> None:
        made.add_block("case True:", lambda: made.add_records([flag]))
        made.add_block("case _:", lambda: made.add_record([]))

    made.add_block(f"match bool({ask}):", cases)


def _assertion(made: Program) -> None:
    flag, ask = made.choose_flag(on=True)
    made.add_record([])
    made.add_lines(f"assert {ask}")
    made.add_records([flag])


def _helper(made: Program) -> None:
    flag, ask = made.choose_flag()
    helper, other = made.make_name("show"), made.make_name("tell")
    made.add_block(f"def {helper}():", lambda: made.add_records([flag]))
    made.add_block(f"def {other}():", lambda: made.add_record([]))
    made.add_lines(f"if {ask}: {helper}()", f"{other}()")


def _helper_nested(made: Program) -> None:
    first, ask = made.choose_flag()
    second, again = made.choose_flag()
    helper = made.make_name("show")

    def add_helper_body() -> None:
        made.add_record([first])
        made.add_lines(f"if not ({again}): return")
        made.add_records([first, second])

    made.add_block(f"def {helper}():", add_helper_body)
    made.add_lines(f"if {ask}: {helper}()")


def _helper_answer(made: Program) -> None:
    flag, ask = made.choose_flag()
    helper = made.make_name("wants")
    made.add_block(f"def {helper}():", lambda: made.add_lines(f"if {ask}: return True", "return False"))
    made.add_block(f"if {helper}():", lambda: made.add_records([flag]))


def _attribute(made: Program) -> None:
    """The same name in two classes."""
    for _ in range(2):
        flag, ask = made.choose_flag()
        name = made.make_name("Part")

        def add_class_body(flag: str = flag, ask: str = ask) -> None:
            made.add_lines("def __init__(self):", f"    self.debug = {ask}")
            show = made.make_name("show")
            made.add_block(
                f"def {show}(self):", lambda: made.add_block("if self.debug:", lambda: made.add_records([flag]))
            )
            made.add_lines(f"def run(self): self.{show}()")

        made.add_block(f"class {name}:", add_class_body)
        made.add_lines(f"{name}().run()")


def _section(made: Program) -> None:
    flag = made.random.choice(FLAGS)
    made.add_lines("section = cfg.DEBUG")
    made.add_block(f"if section.{flag} and yes:", lambda: made.add_records([flag]))
    made.add_block(f"if (dbg := section.{flag}):", lambda: made.add_record([flag]))
    made.add_record([])


def _closure(made: Program) -> None:
    flag, ask = made.choose_flag()
    inner = made.make_name("inner")
    made.add_lines(f"wanted = {ask}")
    made.add_block(
        f"def {inner}():",
        lambda: (made.add_record([]), made.add_block("if wanted:", lambda: made.add_records([flag])))[0],
    )
    made.add_lines(f"{inner}()")


def _given_argument(made: Program) -> None:
    flag, ask = made.choose_flag()
    name = made.make_name("show")
    made.add_block(
        f"def {name}(verbose=False):", lambda: made.add_block("if verbose:", lambda: made.add_records([flag]))
    )
    made.add_lines(f"{name}(verbose={ask})", f"{name}()")


def _branches(made: Program) -> None:
    first, ask = made.choose_flag()
    second, again = made.choose_flag()
    made.add_lines("if yes:", f"    dbg = {ask}", "else:", f"    dbg = {ask}")
    made.add_block("if dbg:", lambda: made.add_records([first]))
    made.add_lines(f"dbg = {again}", "if no:", "    dbg = yes", "    return")
    made.add_block("if dbg:", lambda: made.add_records([second]))


def _counted(made: Program) -> None:
    flag, ask = made.choose_flag()
    made.add_lines("stats = None", f"if {ask}:", "    stats = len(some)")
    made.add_block("if stats is not None:", lambda: made.add_records([flag]))
    made.add_record([])


def _plain_records(made: Program) -> None:
    for _ in range(4):
        made.add_record([])


STYLES = (
    _direct, _alias, _reassigned, _switched, _early, _early_else, _early_try, _quiet, _loop_exit, _endless, _nested,
    _nested_early, _several, _match_statement, _assertion, _helper, _helper_nested, _helper_answer, _attribute, _section, _closure, _given_argument,
    _branches, _counted, _plain_records,
)  # fmt: skip


def read_notes(path: Path) -> list[tuple[str, list[str], str]]:
    """What the program noted, record by record: the style, the flags, the text."""
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


def count_lines(found: list[tuple[str, list[str], str]]) -> Counter[tuple[str, str]]:
    """(flag, line) pairs: every line of a record counts, but for the empty ones."""
    return Counter(
        (flag, line.strip()) for _, flags, text in found for flag in flags for line in text.split("\n") if line.strip()
    )
