"""What a code means, as `tdbg explain` tells."""

import msgspec

from tdbg.core.errors import TdbgError
from tdbg.core.rule_base import RULE_CATALOG
from tdbg.viewer.routes import API, NotFoundError, route
from tdbg.viewer.run_library import Served


class RulePage(msgspec.Struct, kw_only=True):
    """A code, its usual severity, its title, and its page as text."""

    code: str
    severity: str
    title: str
    page: str


class UnknownCodeError(NotFoundError):
    """No finding has this code."""


@route("GET", f"{API}/rules/{{code}}")
def explain_code(served: Served, code: str) -> RulePage:
    """Explain the code of a finding or of advice, as `tdbg explain` does."""
    try:
        rule = RULE_CATALOG.find(code)
    except TdbgError as error:
        raise UnknownCodeError(str(error), error.hint) from None
    return RulePage(code=rule.code, severity=rule.severity, title=rule.title, page=rule.page())
