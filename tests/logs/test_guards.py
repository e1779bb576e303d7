"""Guards read from source: the shapes in which programs put a call behind a flag, and those that are none."""

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdbg.logs.guards.facts import Facts
from tdbg.logs.guards.files import facts_of, files_below, map_of, maps_below
from tdbg.logs.guards.link import GuardMap, link
from tdbg.logs.guards.reader import read

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
    "perhaps an alias": "dbg = cfg.DEBUG.AMP\ndbg = other()\nif dbg: say()  # ?AMP",
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
    "logging.DEBUG": "if level == logging.DEBUG: say()  #",
    "debug method": "if logger.debug('x'): say()  #",
    "many lines": "if cfg.DEBUG.AMP:\n  say(\n    1,  # AMP\n    2)  # AMP",
}


def check(found: GuardMap, text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        if "#" in line:
            assert sorted(found.lines.get(number, ())) == line.partition("#")[2].split(), line


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES.keys())
def test_shapes(text: str) -> None:
    check(link({"a": read(text.encode())})["a"], text)


def test_one_way_of_several_counts_only_while_it_is_on() -> None:
    found = link({"a": read(b"if cfg.DEBUG.LOSS.X or v: say()")})["a"]
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
    found = link({"a": read(textwrap.dedent(text).encode())})["a"]
    assert (found.passing_on, found.passed_on) == ({"log0"}, {3})
    assert [(call.shape, call.flags) for call in found.calls] == [(["behind ", ""], ["AMP"]), (["free"], [])]


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
    link({"a": read(text.encode())})


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
