"""The examples of the page on metrics do what it says."""

import re
from pathlib import Path

import tdbg
from tdbg.metrics.tracker.metrics_tracker import MetricsTracker

PAGE = Path(tdbg.__file__).parents[1] / "docs" / "metrics.md"


def test_the_examples_of_the_page():
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(block, names)
    made = names["tracker"]
    assert isinstance(made, MetricsTracker)
    keys = {str(key) for key in made.phase("val").snapshot}
    said = re.search(r"# val/loss.*?\n\)", text, re.S)
    assert said and keys == set(re.findall(r"val/[\w/]+", said.group()))
    assert made.make_metric("score").higher_is_better is True and made.make_metric("drift").higher_is_better is False
