"""The report for an issue tracker: complete, and nothing that a program wrote takes effect in it."""

import html
import re
from collections.abc import Callable, Iterator

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from streams import Stream, make_nonfinite

from tdbg.core.events import Cost, Finding
from tdbg.core.rundir import RunDir
from tdbg.rules.markdown_report import format_code_block, format_code_span, write_markdown
from tdbg.rules.preflight_lines import TrialRow
from tdbg.rules.verdict import Verdict
from tdbg.rules.view import read_info

HOSTILE = (
    "a`b",
    "`",
    "```",
    "``` x\n# heading",
    "~~~",
    "a|b",
    "a\\|b | c",
    "\\",
    "<script>alert(1)</script>",
    "</code><img src=x onerror=alert(1)>",
    "<!-- x",
    "@maintainer and #12",
    "[x](http://evil.example) ![y](z) http://evil.example www.evil.example",
    "**bold** _it_ ~~no~~ $x$ :tada:",
    "&lt;b&gt; &#64;x",
    "- [ ] item\n> quote\n\n    code",
    "end\x1b[31m\u202e\u2028of line",
    "",
)
MARKS = {"h3", "h4", "p", "code", "pre", "table", "thead", "tbody", "tr", "th", "td"}


def render_markdown(text: str) -> str:
    """What a page shows: HTML is let through, as the strictest case."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)


def iter_tokens(text: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text):
        yield from (token, *(token.children or ()))


def extract_shown_text(text: str) -> str:
    """The characters that a name may have in the report: one line, escaped."""
    return html.unescape(re.sub(r"<[^>]*>", "", render_markdown(text))).strip()


@pytest.mark.parametrize("text", HOSTILE)
def test_code_within_a_line_shows_a_text_and_obeys_none_of_it(text: str) -> None:
    line = f"before {format_code_span(text)} after"
    assert set(re.findall(r"</?(\w+)", render_markdown(line))) == {"p", "code"}
    assert not [
        token for token in iter_tokens(line) if token.type in ("html_inline", "html_block", "link_open", "image")
    ]
    plain = " ".join(text.split())
    if plain.isprintable() and plain:
        assert extract_shown_text(line) == f"before {plain} after"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_stays_one_cell(text: str) -> None:
    table = f"| a | b |\n| --- | --- |\n| {format_code_span(text, in_table=True)} | x |"
    page = render_markdown(table)
    assert page.count("<td>") == 2 and "<td>x</td>" in page
    assert set(re.findall(r"</?(\w+)", page)) <= MARKS
    plain = " ".join(text.split())
    if plain.isprintable() and plain:
        cell = re.search(r"<td><code>(.*?)</code></td>", page)
        assert cell is not None and html.unescape(cell[1]) == plain


@pytest.mark.parametrize("text", HOSTILE)
def test_a_block_of_code_ends_where_it_should(text: str) -> None:
    page = render_markdown("\n".join([*format_code_block(["first", text, "last"]), "", "after"]))
    assert page.count("<pre>") == 1 and page.endswith("last\n</code></pre>\n<p>after</p>\n")
    assert format_code_block([]) == []


@pytest.fixture
def hostile_verdict(make_stream: Callable[..., Stream]) -> Verdict:
    """A run whose names are all hostile."""
    run = make_stream(flags={"LR": True})
    rank = run.begin_rank()
    run.emit_steps(rank, [2.5, 2.4])
    run.emit_events(
        rank,
        make_nonfinite(module="".join(HOSTILE), module_class="<script>", line="x.py:1", code="@maintainer `x` | y"),
    )
    run.emit_steps(rank, ["nan"] * 30, first=3)
    run.emit_events(rank, Cost(step=33, own_ms=4.0, wall_ms=1000.0, budget_pct=1.0, startup_ms=80.0))
    run.run.update_info(
        command=["python", "x.py", "<script>", "`a`|b", "--api-key", "sk-abcdefghijklmnopqrstuvwx", "-k", "hunter2xyz"],
        versions={"tdbg": "1.2", "python": "3.11", "<b>": "|"},
        git={"commit": "abcdef0123", "branch": "main", "dirty": True},
        ranks={"0": {"torch": "2.13.0", "device": {"type": "cuda", "name": "`H100` <b>"}}, "x": {}, "1": 7},
        cwd="/home/someone/job",
        host="secret-host",
    )
    verdict = run.judge_stream(1)
    verdict.findings += [Finding(code=text or "TD-X", severity=text, title=text, evidence=[text]) for text in HOSTILE]
    return verdict


def test_nothing_in_a_whole_report_takes_effect(hostile_verdict: Verdict) -> None:
    text = "\n".join(write_markdown(hostile_verdict, read_info(RunDir.open(hostile_verdict.run)), list(HOSTILE)))
    assert set(re.findall(r"</?(\w+)", render_markdown(text))) <= MARKS
    assert not [
        token
        for token in iter_tokens(text)
        if token.type in ("link_open", "image", "em_open", "strong_open", "s_open", "html_block")
        or (token.type == "html_inline" and token.content not in ("<code>", "</code>"))
    ]
    page = render_markdown(text)
    outside = re.sub(r"(?s)<code.*?</code>|<[^>]*>", "", page)
    assert not re.search(r"[<@#`|\\$:]|http|www", html.unescape(outside))
    assert page.count("<tr>") == len(hostile_verdict.findings) + 1 and page.count("<td>") == 6 * len(
        hostile_verdict.findings
    )


def test_the_report_is_complete_and_without_secrets(hostile_verdict: Verdict) -> None:
    text = "\n".join(
        write_markdown(hostile_verdict, read_info(RunDir.open(hostile_verdict.run)), ["2026-11-24 10:00 a note"])
    )
    headings = re.findall(r"^#### (.*)$", text, re.MULTILINE)
    assert headings == ["Findings", "Evidence", "Watched", "Environment", "Cost of tdbg", "Notes"]
    assert "| `TD-N001` | `critical` | 3 | 0 |" in text
    assert re.search(r"^\| `TD-N002` .*\| `TD-N001` \|$", text, re.MULTILINE)
    assert "  followed by: TD-N002 critical: " in text
    assert "sk-abcdefghijklmnopqrstuvwx" not in text and "--api-key" in text and "hunter2xyz" not in text
    assert "secret-host" not in text and "/home/someone" not in text and hostile_verdict.run not in text
    assert "commit: abcdef0123, with changes" in text and "rank 0: torch 2.13.0, cuda `H100` <b>" in text
    assert "tdbg: --level basic, flags LR" in text and "cost of tdbg: 0.40 % of the wall time" in text
    assert "2026-11-24 10:00 a note" in text


def test_a_healthy_run_and_one_without_a_state_file(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    run.emit_steps(rank, [2.0])
    run.end_process(rank, 1)
    for info in ({}, {"command": "x", "versions": 3, "git": [], "ranks": "y"}):
        text = "\n".join(write_markdown(run.judge_stream(), info))
        assert re.findall(r"^#### (.*)$", text, re.MULTILINE) == ["Watched", "Environment"]
        assert "`verdict: no problem found in what was watched; 1 rank, 1 step, loss 2; exit 0`" in text


def test_many_findings_stay_readable(one_rank: tuple[Stream, str]) -> None:
    run, rank = one_rank
    run.emit_steps(rank, [2.0])
    verdict = run.judge_stream()
    verdict.findings = [Finding(code="TD-X001", severity="error", title=f"finding {number}") for number in range(80)]
    text = "\n".join(write_markdown(verdict, {}))
    assert "\nand 30 more findings\n" in text and "... and 70 more findings" in text and len(text) < 65_536


def test_of_a_preflight_it_shows_the_trials() -> None:
    tried = TrialRow(
        trial="one sample changed", tried=True, outcome="no other output changes", reason="", refused=False
    )
    text = "\n".join(write_markdown(Verdict(run="runs/a", is_preflight=True, trials=[tried]), {}))
    assert "#### Preflight" in text and "preflight tried: one sample changed (no other output changes)" in text
    assert "Watched" not in text and "not tried" not in text


def test_a_preflight_without_a_trial_says_why() -> None:
    ended = Verdict(run="runs/a", is_preflight=True)
    assert "preflight: the program ended before its first update, so nothing was tested" in ended.format_headline()
    off = Finding(code="TD-C005", severity="warning", title="off")
    failed = Verdict(run="runs/a", is_preflight=True, findings=[off], causes=[None])
    assert failed.format_coverage() == ["the preflight failed: nothing was tried (TD-C005)"]
