"""Every link between the pages leads somewhere: to a file, and to a heading in it."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.S | re.M)
SPAN = re.compile(r"`[^`\n]*`")


def iter_links(page: Path) -> Iterator[str]:
    """The targets of all links of a page, without those in code."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    linked = re.sub(r"\[`([^`\n]*)`\]", r"[\1]", text)  # a name in code that is a link
    yield from LINK.findall(SPAN.sub("", linked))


@cache
def list_anchors(page: Path) -> frozenset[str]:
    """The names of all headings of a page, as GitHub and the site make them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_link_is_dead(page: Path) -> None:
    dead = []
    for link in iter_links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in list_anchors(target)):
            dead.append(link)
    assert dead == []


def test_no_page_of_docs_links_out_of_docs() -> None:
    """The site has the pages of docs/ alone."""
    outside = [
        f"{page.name}: {link}"
        for page in DOCS.rglob("*.md")
        for link in iter_links(page)
        if not re.match(r"[a-z]+:|#", link)
        and not (page.parent / link.partition("#")[0]).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    missing = [path for page in DOCS.rglob("*.md") if f'"{(path := page.relative_to(DOCS).as_posix())}"' not in text]
    assert missing == []
