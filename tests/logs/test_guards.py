"""Guards read from source: the shapes in which programs put a call behind a flag, and those that are none."""

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.logs.guards.facts import Facts
from tdbg.logs.guards.link import GuardMap, link_facts
from tdbg.logs.guards.program_files import facts_of, files_below, map_of, maps_below
from tdbg.logs.guards.reader import parse_facts

SHAPES = {
    "function": "if check_debug_flag(cfg, 'DEBUG.LOSS.NULL_MASKING'): say()  # LOSS.NULL_MASKING",
    "leaf alone": "if check_debug_flag(cfg, 'NULL_MASKING'): say()  # LOSS.NULL_MASKING",
    "keyword": "if check_debug_flag(cfg, name='AMP'): say()  # AMP",
    "own ending": "if self.has_debug_flag('AMP'): say()  # AMP",
    "attribute": "if self.cfg.DEBUG.AMP: say()  # AMP",
    "lower case": "if config.debug.amp: say()  # AMP",
    "argparse": "if args.debug_null_masking: say()  # LOSS.NULL_MASKING",
    "subscript": "if cfg['DEBUG']['LOSS']['OTHER']: say()  # LOSS.OTHER",
    "getattr": "if getattr(cfg.DEBUG, 'AMP', False): say()  # AMP",
    "get": "if cfg.get('DEBUG', {}).get('AMP', False): say()  # AMP",
    "tdbg": "import tdbg\nif tdbg.flag('AMP'): say()  # AMP",
    "section alias": "D = cfg.DEBUG\nif D.LOSS.OTHER: say()  # LOSS.OTHER",
    "alias": "dbg = cfg.DEBUG.AMP\nif dbg: say()  # AMP",
    "late alias": "dbg = False\nif x: dbg = cfg.DEBUG.AMP\nif dbg: say()  # AMP",
    "alias of an alias": "a = cfg.DEBUG.AMP\nb = a and x\nif b: say()  # AMP",
    "perhaps an alias": "dbg = cfg.DEBUG.AMP\nif x: dbg = other()\nif dbg: say()  # ?AMP",
    "no alias": "dbg = cfg.DEBUG.AMP\ndbg = 1\nif dbg: say()  #",
    "walrus": "if (dbg := cfg.DEBUG.AMP) and x: say()  # AMP",
    "and": "if x and cfg.DEBUG.AMP: say()  # AMP",
    "both": "if cfg.DEBUG.LR and cfg.DEBUG.AMP: say()  # AMP LR",
    "or": "if cfg.DEBUG.LR or cfg.DEBUG.AMP: say()  # AMP LR",
    "or something": "if cfg.DEBUG.LR or x: say()  # ?LR",
    "else": "if not cfg.DEBUG.AMP: say()\nelse: say()  # AMP",
    "not else": "if cfg.DEBUG.AMP: pass\nelse: say()  #",
    "elif": "if x: say()\nelif cfg.DEBUG.AMP: say()  # AMP",
    "nested": "if cfg.DEBUG.LR:\n  if cfg.DEBUG.AMP: say()  # AMP LR",
    "early return": "def f():\n  if not cfg.DEBUG.AMP: return\n  say()  # AMP",
    "early return of two": "def f():\n  if not (cfg.DEBUG.LR or cfg.DEBUG.AMP): return\n  say()  # AMP LR",
    "early return with more": "def f():\n  if x and not cfg.DEBUG.AMP: return\n  say()  # ?AMP",
    "continue": "for i in x:\n  if not cfg.DEBUG.AMP: continue\n  say()  # AMP",
    "after the loop": "for i in x:\n  if not cfg.DEBUG.AMP: continue\nsay()  #",
    "while": "while cfg.DEBUG.AMP: say()  # AMP",
    "is": "if cfg.DEBUG.AMP is True: say()  # AMP",
    "is not": "if cfg.DEBUG.AMP is not False: say()  # AMP",
    "equals false": "if cfg.DEBUG.AMP == False: say()  #",
    "number": "if cfg.DEBUG.EVERY > 0 and step % cfg.DEBUG.EVERY == 0: say()  # EVERY",
    "any": "if any([cfg.DEBUG.LR, cfg.DEBUG.AMP]): say()  # AMP LR",
    "bool": "if bool(cfg.DEBUG.AMP): say()  # AMP",
    "and statement": "cfg.DEBUG.AMP and print('x')  # AMP",
    "conditional": "y = print('x') if cfg.DEBUG.AMP else None  # AMP",
    "comprehension": "[print(i) for i in x if cfg.DEBUG.AMP]  # AMP",
    "argument only": "log.info('a' if cfg.DEBUG.AMP else other())  #",
    "with": "with x:\n  if not cfg.DEBUG.AMP: raise E\n  say()  # AMP",
    "try": "try:\n  if cfg.DEBUG.AMP: say()  # AMP\nexcept E: pass",
    "match": "match x:\n  case 1 if cfg.DEBUG.AMP:\n    say()  # AMP",
    "class attribute": "class A:\n  def __init__(self): self.d = cfg.DEBUG.AMP\n  def g(self):\n    if self.d: say()  # AMP",
    "property": "class A:\n  @property\n  def d(self): return cfg.DEBUG.AMP\n  def g(self):\n    if self.d: say()  # AMP",
    "answer": "def d(): return cfg.DEBUG.AMP\nif d(): say()  # AMP",
    "given": "def f(v=False):\n  if v: say()  # AMP\nf(v=cfg.DEBUG.AMP)",
    "given by place": "class A:\n  def f(self, v):\n    if v: say()  # AMP\nA().f(cfg.DEBUG.AMP)",
    "helper": "def f():\n  say()  # AMP\nif cfg.DEBUG.AMP: f()",
    "helper of a helper": "def f():\n  say()  # AMP\ndef g(): f()\nif cfg.DEBUG.AMP: g()",
    "helper of two": "def f():\n  say()  # AMP LR\nif cfg.DEBUG.AMP: f()\nif cfg.DEBUG.LR: f()",
    "helper that others call": "def f():\n  say()  #\nif cfg.DEBUG.AMP: f()\nf()",
    "helper handed on": "def f():\n  say()  #\nif cfg.DEBUG.AMP: f()\nrun(f)",
    "helper by getattr": "class A:\n  def f(self):\n    say()  #\nif cfg.DEBUG.AMP: a.f()\ngetattr(a, 'f')()",
    "two of a name": "class A:\n  def f(self):\n    say()  #\nclass B:\n  def f(self): pass\nif cfg.DEBUG.AMP: a.f()",
    "called by torch": "class A:\n  def forward(self):\n    say()  #\nif cfg.DEBUG.AMP: a.forward()",
    "registered": "@app.command\ndef f():\n  say()  #\nif cfg.DEBUG.AMP: f()",
    "recursion": "def f():\n  f()\n  say()  # AMP\nif cfg.DEBUG.AMP: f()",
    "alias of itself": "a = a and a\nif a: say()  #",
    "reassigned": "d = cfg.DEBUG.AMP\nif d: say()  # AMP\nd = cfg.DEBUG.LR\nif d: say()  # LR\nd = x\nif d: say()  #",
    "reassigned in a function": (
        "def f():\n  d = cfg.DEBUG.AMP\n  if d: say()  # AMP\n  d = cfg.DEBUG.LR\n  if d: say()  # LR"
    ),
    "reassigned in a branch": "d = cfg.DEBUG.AMP\nif x: d = cfg.DEBUG.LR\nif d: say()  # AMP LR",
    "reassigned in both branches": "d = x\nif x: d = cfg.DEBUG.LR\nelse: d = cfg.DEBUG.AMP\nif d: say()  # AMP LR",
    "branch that leaves": "def f():\n  d = cfg.DEBUG.AMP\n  if x:\n    d = y\n    return\n  if d: say()  # AMP",
    "switched on under a flag": "d = False\nif cfg.DEBUG.AMP: d = True\nif d: say()  # AMP",
    "made under a flag": "d = None\nif cfg.DEBUG.AMP: d = f()\nif d is not None: say()  # AMP",
    "counted under a flag": "d = 0\nif cfg.DEBUG.AMP: d = f()\nif d is not None: say()  #",
    "counted over none": "d = 0\nif cfg.DEBUG.AMP: d += 1\nif d > 0: say()  # AMP",
    "round a loop": "d = False\nfor i in x:\n  if d: say()  # AMP\n  d = cfg.DEBUG.AMP",
    "replaced in a loop": "d = cfg.DEBUG.AMP\nfor i in x:\n  d = cfg.DEBUG.LR\n  if d: say()  # LR",
    "from a break": "while True:\n  d = cfg.DEBUG.AMP\n  if x: break\n  d = y\nif d: say()  # AMP",
    "in a try": "d = y\ntry:\n  d = cfg.DEBUG.AMP\nexcept E: d = False\nif d: say()  # AMP",
    "with as": "d = cfg.DEBUG.AMP\nwith x as d: pass\nif d: say()  #",
    "for target": "d = cfg.DEBUG.AMP\nfor d in x:\n  if d: say()  #",
    "comprehension of the name": "d = cfg.DEBUG.AMP\ny = [d for d in x if d]\nif d: say()  # AMP",
    "lambda of the name": "d = cfg.DEBUG.AMP\ny = lambda d: d and print(1)  #\nif d: say()  # AMP",
    "one name in two classes": (
        "class A:\n  def __init__(self): self.d = cfg.DEBUG.AMP\n  def g(self):\n    if self.d: say()  # AMP\n"
        "class B:\n  def __init__(self): self.d = cfg.DEBUG.LR\n  def g(self):\n    if self.d: say()  # LR"
    ),
    "attribute reassigned": (
        "class A:\n  def g(self):\n    self.d = cfg.DEBUG.AMP\n    if self.d: say()  # AMP\n"
        "    self.d = cfg.DEBUG.LR\n    if self.d: say()  # LR"
    ),
    "attribute that a method sets": (
        "class A:\n  def g(self):\n    self.d = False\n    self.h()\n    if self.d: say()  # AMP\n"
        "  def h(self): self.d = cfg.DEBUG.AMP"
    ),
    "global": "D = False\ndef f():\n  global D\n  D = cfg.DEBUG.AMP\ndef g():\n  if D: say()  # AMP\nif D: say()  # AMP",
    "nonlocal": (
        "def f():\n  d = False\n  def g():\n    nonlocal d\n    d = cfg.DEBUG.AMP\n  g()\n  if d: say()  # AMP"
    ),
    "parameter set in the function": "def f(d=None):\n  d = cfg.DEBUG.AMP\n  if d: say()  # AMP",
    "not": "quiet = not cfg.DEBUG.AMP\nif not quiet: say()  # AMP\nif quiet: say()  #",
    "answer of no": "def q(): return not cfg.DEBUG.AMP\nif not q(): say()  # AMP\nif q(): say()  #",
    "answer by return": "def d():\n  if cfg.DEBUG.AMP: return True\n  return False\nif d(): say()  # AMP",
    "answer of no by return": "def q():\n  if not cfg.DEBUG.AMP: return 1\n  return 0\nif not q(): say()  # AMP",
    "or into a name": "d = False\nd |= cfg.DEBUG.AMP\nd = d or cfg.DEBUG.LR\nif d: say()  # AMP LR",
    "any of some": "if any(check_debug_flag(cfg, n) for n in ('AMP', 'LR')): say()  # AMP LR",
    "all of some": "if all([cfg.DEBUG.LR, x]): say()  # LR",
    "name of a flag": "F = 'DEBUG.AMP'\nif check_debug_flag(cfg, F): say()  # AMP",
    "not in": "if 'AMP' not in cfg.DEBUG: pass\nelse: say()  # AMP",
    "return in every branch": ("def f():\n  if not cfg.DEBUG.AMP:\n    if x: return\n    else: return\n  say()  # AMP"),
    "return in a with": "def f():\n  if not cfg.DEBUG.AMP:\n    with x: return\n  say()  # AMP",
    "return in a try": "def f():\n  if not cfg.DEBUG.AMP:\n    try: y()\n    finally: return\n  say()  # AMP",
    "try that returns": "def f():\n  try:\n    if not cfg.DEBUG.AMP: return\n    say()  # AMP\n  except E: pass\n  say()  # AMP",
    "try that raises": "def f():\n  try:\n    if not cfg.DEBUG.AMP: raise E\n    say()  # AMP\n  except E: pass\n  say()  #",
    "return in a nested condition": "def f():\n  if x:\n    if not cfg.DEBUG.AMP: return\n    say()  # AMP\n  say()  # ?AMP",
    "nested returns": "def f():\n  if not cfg.DEBUG.AMP:\n    if not cfg.DEBUG.LR: return\n  say()  # AMP LR",
    "return after more": "def f():\n  if not cfg.DEBUG.AMP:\n    print(1)\n    return\n    print(2)\n  say()  # AMP",
    "return in else": "def f():\n  if cfg.DEBUG.AMP: y()\n  else: return\n  say()  # AMP",
    "return in elif": "def f():\n  if cfg.DEBUG.AMP: y()\n  elif x: return\n  else: return\n  say()  # AMP",
    "return in a match": "def f():\n  match cfg.DEBUG.AMP:\n    case False: return\n  say()  # AMP",
    "match of a flag": "match cfg.DEBUG.AMP:\n  case True:\n    say()  # AMP\n  case _:\n    say()  #",
    "match whose rest returns": "def f():\n  match cfg.DEBUG.AMP:\n    case True: y()\n    case _: return\n  say()  # AMP",
    "endless loop": "while True:\n  if not cfg.DEBUG.AMP: break\n  say()  # AMP\nsay()  #",
    "loop left by a flag": "while True:\n  if cfg.DEBUG.AMP: break\nsay()  # AMP",
    "loop until": "while not cfg.DEBUG.AMP: y()\nsay()  # AMP",
    "loop perhaps left by a flag": "for i in x:\n  if cfg.DEBUG.AMP: break\nsay()  #",
    "loop with else": "def f():\n  for i in x:\n    if cfg.DEBUG.AMP: break\n  else: return\n  say()  # AMP",
    "loop that never ends": "def f():\n  if not cfg.DEBUG.AMP:\n    while True: y()\n  say()  # AMP",
    "assert": "assert cfg.DEBUG.AMP\nsay()  # AMP",
    "exit": "if not cfg.DEBUG.AMP: sys.exit(0)\nsay()  # AMP",
    "two early returns": "def f():\n  if not cfg.DEBUG.AMP: return\n  if not cfg.DEBUG.LR: return\n  say()  # AMP LR",
    "early return over functions": (
        "def f():\n  if not cfg.DEBUG.AMP: return\n  g()\ndef g():\n  if not cfg.DEBUG.LR: return\n  say()  # AMP LR"
    ),
    "lambda": "f = lambda: print(1)  # AMP\nif cfg.DEBUG.AMP: f()",
    "logging.DEBUG": "if level == logging.DEBUG: say()  #",
    "debug method": "if logger.debug('x'): say()  #",
    "many lines": "if cfg.DEBUG.AMP:\n  say(\n    1,  # AMP\n    2)  # AMP",
}


def assert_guards(found: GuardMap, text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        if "#" in line:
            assert sorted(found.lines.get(number, ())) == line.partition("#")[2].split(), line


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES.keys())
def test_shapes(text: str) -> None:
    assert_guards(link_facts({"a": parse_facts(text.encode())})["a"], text)


def test_one_way_of_several_counts_only_while_it_is_on() -> None:
    found = link_facts({"a": parse_facts(b"if cfg.DEBUG.LOSS.X or v: say()")})["a"]
    assert found.flags_at(1) == found.flags_at(1, ["LOSS.X"]) == found.flags_at(1, ["LOSS"]) == {"LOSS.X"}
    assert found.flags_at(1, ["AMP"]) == frozenset()


def test_helpers_across_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from b import helper, other\nif cfg.DEBUG.AMP:\n    helper()\n    other()\n")
    (tmp_path / "b.py").write_text("# tdbg\ndef helper():\n    say()\ndef other():\n    say()\n")
    (tmp_path / "c.py").write_text("from b import other\nother()\n")  # asks for no flag, and yet it counts
    found = maps_below(tmp_path)[str(tmp_path / "b.py")]
    assert (found.flags_at(3), found.flags_at(5)) == ({"AMP"}, frozenset())


def test_functions_that_pass_a_message_on() -> None:
    text = """
    def log0(msg, *args):
        if rank == 0: logger.info(msg, *args)
    if cfg.DEBUG.AMP: log0("behind %d", x)
    log0("free")
    """
    found = link_facts({"a": parse_facts(textwrap.dedent(text).encode())})["a"]
    assert (found.passing_on, found.passed_on) == ({"log0"}, {3})
    assert [(call.shape, call.flags) for call in found.calls] == [(["behind ", ""], ["AMP"]), (["free"], [])]


CALLS = {
    "getattr": "getattr(logger, level.lower())('its text %s', x)",
    "getattr of a name": "m = 'info'\ngetattr(logger, m)('its text %s', x)",
    "getattr of log": "getattr(logger, 'log')(10, 'its text %s', x)",
    "method": "log = logger.info\nlog('its text %s', x)",
    "method by getattr": "say = getattr(logger, level)\nsay('its text %s', x)",
    "print by another name": "say = print\nsay('its text', x)",
    "print by a condition": "say = print if x else logger.info\nsay(f'its text {x}')",
    "log": "logging.getLogger(x).log(level, 'its text %s', x)",
    "log of a name": "l = logging.getLogger(x)\nl.log(level, 'its text %s', x)",
    "keyword": "logger.log(level=10, msg='its text %s' % x)",
    "table": "{'info': logger.info, 'debug': logger.debug}[level]('its text %s', x)",
    "table by name": "T = {'info': logger.info}\nT[level]('its text %s', x)",
    "table by get": "T = {'info': logger.info}\nT.get(level, print)('its text %s', x)",
    "list": "[logger.debug, logger.info][x]('its text %s', x)",
    "partial of print": "say = functools.partial(print, flush=True)\nsay('its text', x)",
    "partial of log": "say = partial(logger.log, 20)\nsay('its text %s', x)",
    "partial with text": "say = partial(print, 'its')\nsay('text', x)",
    "attribute": "class A:\n  def __init__(self): self.say = logger.info\n  def f(self):\n    self.say('its text %s', x)",
    "lambda": "say = lambda m: logger.info(m)\nsay(f'its text {x}')",
    "loop": "for say in (print, logger.info): say(f'its text {x}')",
    "default": "def f(say=print):\n  say('its text', x)",
    "parameter": "def f(log_fn):\n  log_fn(f'its text {x}')",
    "function of all": "def say(*args): print(*args)\nsay('its text', x)",
    "function with more": "def say(*args): print('[0]', *args)\nsay('its text', x)",
    "text by name": "m = f'its text {x}'\nlogger.info(m)",
    "text in parts": "m = 'its '\nm += f'text {x}'\nlogger.info(m)",
    "text by format": "M = 'its text {}'\nlogger.info(M.format(x))",
    "text without spaces": "print('its ', 'text ', x, sep='')",
    "line goes on": "print('its text ', end='')",
}


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS.keys())
def test_calls(text: str) -> None:
    found = link_facts({"a": parse_facts(text.encode())})["a"]
    said = ["{}".join(part for part in call.shape) for call in found.calls]
    assert [text for text in said if "its text {}" in text]


def test_each_text_has_the_flags_of_its_place() -> None:
    text = "m = 'a text'\nif cfg.DEBUG.AMP: m = 'its text'\nlogger.info(m)\nlogger.info('b' if cfg.DEBUG.LR else m)"
    found = link_facts({"a": parse_facts(text.encode())})["a"]
    said = {(*call.shape, *call.flags) for call in found.calls}
    assert {("a text",), ("its text", "AMP")} <= said


@pytest.mark.parametrize(
    "source",
    [b"this is no python: DEBUG.", b"\xff\xfe\x00DEBUG.", b"# coding: nonsense\nDEBUG.X", b"cfg.DEBUG.X" + b"(" * 5000],
)
def test_what_cannot_be_read_has_an_empty_map(tmp_path: Path, source: bytes) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(source)
    found = map_of(path)
    assert found.broken and replace(found, broken="") == GuardMap() == map_of(tmp_path / "none.py")


def test_huge_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"if cfg.DEBUG.AMP: say()\n" * 100_000)
    assert map_of(path) == GuardMap()


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="if andor not:()=.\n xyDEBUGcfgselfdefreturn,'\"[]@*", max_size=200))
def test_nothing_raises(text: str) -> None:
    link_facts({"a": parse_facts(text.encode())})


def test_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "a.py"
    path.write_text(SHAPES["helper of two"] + "\n" + SHAPES["or something"])
    first = facts_of(str(path))
    (kept,) = tmp_path.glob("cache/tdbg/*/*.json")
    assert facts_of(str(path)) == first != Facts()
    kept.write_text("{}")
    assert facts_of(str(path)) == first
    kept.unlink()
    kept.parent.rmdir()
    kept.parent.write_text("no folder")
    assert facts_of(str(path)) == first


def test_environments_and_caches_are_left_alone(tmp_path: Path) -> None:
    for name in ("pkg/a.py", ".git/b.py", "env/pyvenv.cfg", "env/lib/c.py", "node_modules/d.py", "site-packages/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(files_below(tmp_path)) == [str(tmp_path / "pkg/a.py")]
    assert list(files_below(tmp_path / "pkg/a.py")) == [str(tmp_path / "pkg/a.py")]
