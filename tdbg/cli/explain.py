"""`tdbg explain`: what the code of a finding means."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdbg.cli import options
from tdbg.core.output import print_json, print_table

if TYPE_CHECKING:
    from tdbg.core.rule_base import AnyRule


def command(
    codes: Annotated[
        list[str] | None,
        typer.Argument(metavar="CODE|ADVICE", help="Codes of findings or advice, such as TD-N001; all if left out."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Explain the code of a finding or of an advice, and what to do.

    Examples:
        tdbg explain TD-N001
        tdbg explain TD-P101 TD-P102
        tdbg explain
    """
    from tdbg.core.rule_base import RULE_CATALOG

    if codes:
        rules = list({rule.code: rule for rule in map(RULE_CATALOG.find, codes)}.values())
        if not json:
            print("\n\n".join(map(page_text, rules)))
        elif len(rules) == 1:
            print_json("rule", describe(rules[0]))
        else:
            print_json("rules", [describe(rule) for rule in rules])
        return
    if json:
        print_json("rules", [describe(rule) for rule in RULE_CATALOG])
        return
    print_table(("code", "severity", "title"), [(rule.code, rule.severity, rule.title) for rule in RULE_CATALOG])


def describe(rule: "AnyRule") -> dict[str, Any]:
    """One rule as plain data."""
    return {"code": rule.code, "severity": rule.severity, "title": rule.title, "page": rule.page()}


def page_text(rule: "AnyRule") -> str:
    """The page as printed: code, usual severity and title, then what the rule's docstring says."""
    return f"{rule.code} ({rule.severity}): {rule.title}\n\n{rule.page()}"
