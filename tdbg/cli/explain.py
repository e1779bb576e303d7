"""`tdbg explain`: what the code of a finding means."""

from typing import TYPE_CHECKING, Any

from tdbg.core.command_spec import JSON, Args, Argument, Command, Options
from tdbg.core.errors import TdbgError
from tdbg.core.output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tdbg.core.registry import Registry
    from tdbg.metrics.sanity import Rule as MetricsRule
    from tdbg.rules import Rule
    from tdbg.traces.rules import Rule as TraceRule

    AnyRule = type[Rule] | type[MetricsRule] | type[TraceRule]

MAX_TITLES = 8


HELP = """Explain the code of a finding or of an advice, and what to do.

    Examples:
        tdbg explain TD-N001
        tdbg explain TD-P101 TD-P102
        tdbg explain
    """
OPTIONS: Options = {"json": JSON}


class ExplainArgs(Args):
    """What `explain` can be given."""

    codes: "Sequence[str]" = ()
    json: bool = False


def run(args: ExplainArgs) -> int:
    """Print the pages, or the table of all."""
    if args.codes:
        asked = list({rule.code: rule for rule in map(rule_of, args.codes)}.values())
        if not args.json:
            print("\n\n".join(map(text, asked)))
        elif len(asked) == 1:
            print_json("rule", describe(asked[0]))
        else:
            print_json("rules", [describe(rule) for rule in asked])
        return 0
    if args.json:
        print_json("rules", [describe(rule) for rule in every()])
        return 0
    print_table(("code", "severity", "title"), [(rule.code, usual(rule), rule.title) for rule in every()])
    return 0


def every() -> "Iterator[AnyRule]":
    """The rules of findings, those on metrics among them, and those of the advice on traces."""
    from tdbg.metrics.sanity import RULES as METRICS
    from tdbg.rules import RULES
    from tdbg.traces.rules import RULES as ADVICE

    RULES.load_third_party()
    ADVICE.load_third_party()
    yield from RULES
    yield from METRICS
    yield from ADVICE


def usual(rule: "AnyRule") -> str:
    """How grave it usually is; that of an advice depends on its figures."""
    return getattr(rule, "severity", "advice")


def rule_of(code: str) -> "AnyRule":
    """The rule whose code this is, in any spelling; TdbgError with the nearest one."""
    import difflib

    from tdbg.metrics.sanity import RULES as METRICS
    from tdbg.rules import RULES
    from tdbg.traces.rules import RULES as ADVICE

    name = spelt_out(code)
    registries: tuple[Registry[Any], ...] = (RULES, METRICS, ADVICE)
    for registry in registries:
        if name in registry:
            found: AnyRule = registry[name]
            return found
    rules = {rule.code: rule for rule in every()}  # those of other packages too, whose codes may begin otherwise
    for word in (name, code.strip()):
        if word in rules:
            return rules[word]
    titled = [f"{rule.code} ({rule.title})" for rule in rules.values() if code.strip().lower() in rule.title.lower()]
    if titled:
        more = f" and {len(titled) - MAX_TITLES} more" if len(titled) > MAX_TITLES else ""
        raise TdbgError(f"no finding has the code {code!r}", f"in titles: {', '.join(titled[:MAX_TITLES])}{more}")
    near = difflib.get_close_matches(name, rules, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(rules)}"
    raise TdbgError(f"no finding has the code {code!r}", hint)


def spelt_out(code: str) -> str:
    """``n001`` and ``TDN001`` as the table spells them: ``TD-N001``."""
    word = code.strip().upper().removeprefix("TD").lstrip("-")
    if not word:
        raise TdbgError(f"not a code: {code!r}", "`tdbg explain` shows every code")
    return f"TD-{word}"


def describe(rule: "AnyRule") -> dict[str, Any]:
    """One rule as plain data."""
    return {"code": rule.code, "severity": usual(rule), "title": rule.title, "page": rule.page()}


def text(rule: "AnyRule") -> str:
    """The page as printed: code, usual severity and title, then what the rule's docstring says."""
    return f"{rule.code} ({usual(rule)}): {rule.title}\n\n{rule.page()}"


ARGUMENT = Argument("CODE|ADVICE", "Codes of findings or advice, such as TD-N001; all if left out.", field="codes")
COMMAND = Command(run, ExplainArgs, HELP, OPTIONS, ARGUMENT)
