"""`tdbg explain`: what the code of a finding means."""

from typing import TYPE_CHECKING, Any

from tdbg.core.command_spec import JSON, Args, Argument, Command, Options
from tdbg.core.output import print_json, print_prose
from tdbg.core.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdbg.core.rule_base import AnyRule


HELP = """Explain the code of a finding or of advice, and what to do.

    Examples:
        tdbg explain TD-N001
        tdbg explain TD-P101 TD-P102
        tdbg explain memory
        tdbg explain
    """
OPTIONS: Options = {"json": JSON}


class ExplainArgs(Args):
    """What `explain` can be given."""

    codes: "Sequence[str]" = ()
    json: bool = False


def explain_codes(args: ExplainArgs) -> int:
    """Print the pages, or the table of all."""
    from tdbg.core.rule_base import RULE_CATALOG

    matches = search_rules(args.codes)
    if matches:
        if args.json:
            print_json("rules", [describe_rule(rule) for rule in matches])
        else:
            print_rules(matches)
        return 0
    if args.codes:
        rules = list({rule.code: rule for rule in map(RULE_CATALOG.find, args.codes)}.values())
        if not args.json:
            print_prose("\n\n".join(map(page_text, rules)))
        elif len(rules) == 1:
            print_json("rule", describe_rule(rules[0]))
        else:
            print_json("rules", [describe_rule(rule) for rule in rules])
        return 0
    if args.json:
        print_json("rules", [describe_rule(rule) for rule in RULE_CATALOG])
        return 0
    print_rules(list(RULE_CATALOG))
    return 0


def search_rules(words: "Sequence[str]") -> "list[AnyRule]":
    """Find the rules whose title or page has all of the words, those with a word in the title first.

    A word with a digit or with TD- at its beginning is a code, and no code is searched for.
    """
    from tdbg.core.rule_base import RULE_CATALOG

    wanted = [word for text in words for word in text.lower().split()]
    if not wanted or any(word.startswith("td-") or not set("0123456789").isdisjoint(word) for word in wanted):
        return []
    texts = {rule.code: f"{rule.title}\n{rule.page()}".lower() for rule in RULE_CATALOG}
    found = [rule for rule in RULE_CATALOG if all(_has_word(texts[rule.code], word) for word in wanted)]
    return sorted(found, key=lambda rule: -sum(_has_word(rule.title.lower(), word) for word in wanted))


def _has_word(text: str, word: str) -> bool:
    """True if a word of the text begins so."""
    import re

    return re.search(rf"(?<!\w){re.escape(word)}", text) is not None


def print_rules(rules: "Sequence[AnyRule]") -> None:
    """Print code, severity and title of each."""
    print_table(("code", "severity", "title"), [(rule.code, rule.severity, rule.title) for rule in rules])


def describe_rule(rule: "AnyRule") -> dict[str, Any]:
    """One rule as plain data."""
    return {"code": rule.code, "severity": rule.severity, "title": rule.title, "page": rule.page()}


def page_text(rule: "AnyRule") -> str:
    """The page as printed: code, usual severity and title, then what the rule's docstring says."""
    return f"{rule.code} ({rule.severity}): {rule.title}\n\n{rule.page()}"


ARGUMENT = Argument("CODE|ADVICE", "Codes, such as TD-N001, or words to search for; all if left out.", field="codes")
COMMAND = Command(explain_codes, ExplainArgs, HELP, OPTIONS, ARGUMENT)
