"""`tdbg explain`: what the code of a finding means."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdbg.cli import options
from tdbg.errors import TdbgError
from tdbg.output import print_json, print_table

if TYPE_CHECKING:
    from tdbg.rules import Rule


def command(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="Code of a finding, such as TD-N001; every code if left out.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Explain a finding's code: what it means, why it matters, what to do.

    Examples:
        tdbg explain TD-N001
        tdbg explain
    """
    from tdbg.rules import RULES

    if code is not None:
        rule = rule_of(code)
        print_json("rule", describe(rule)) if json else print(text(rule))
        return
    RULES.load_third_party()
    if json:
        print_json("rules", [describe(rule) for rule in RULES])
        return
    print_table(("code", "severity", "title"), [(rule.code, rule.severity, rule.title) for rule in RULES])


def rule_of(code: str) -> "type[Rule]":
    """The rule whose code this is, in any spelling; TdbgError with the nearest one."""
    from tdbg.rules import RULES

    name = spelt_out(code)
    try:
        return RULES[name]
    except TdbgError as error:
        raise TdbgError(f"no finding has the code {code!r}", error.hint) from None


def spelt_out(code: str) -> str:
    """``n001`` and ``TDN001`` as the table spells them: ``TD-N001``."""
    word = code.strip().upper().removeprefix("TD").lstrip("-")
    if not word:
        raise TdbgError(f"not a code: {code!r}", "`tdbg explain` shows every code")
    return f"TD-{word}"


def describe(rule: "type[Rule]") -> dict[str, Any]:
    """One rule as plain data."""
    return {"code": rule.code, "severity": rule.severity, "title": rule.title, "page": rule.page()}


def text(rule: "type[Rule]") -> str:
    """The page as printed: code, usual severity and title, then what the rule's docstring says."""
    return f"{rule.code} ({rule.severity}): {rule.title}\n\n{rule.page()}"
