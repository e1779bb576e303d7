"""Secrets kept out of what tdbg writes: command lines, environment, settings, tracebacks, messages.

Better a word too many masked than one too few. A name says that its value is a secret if one of its words does:
``WANDB_API_KEY``, ``--hub-token``, ``dbPassword``, ``+logger.auth=...``; ``author``, ``monkey``, ``tokenizer`` do not.
Standard library alone: a rank writes with it.
"""

import re

from tdbg.core.lazy_pattern import lazy_pattern

TYPE_CHECKING = False  # what `typing` says, without its import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from re import Match

MARK = "***"
_WORDS = frozenset(
    [
        "pwd",
        "pw",
        "pass",
        "passwd",
        "password",
        "passwords",
        "passphrase",
        "passcode",
        "pat",
        "auth",
        "authorization",
        "oauth",
        "cred",
        "creds",
        "credential",
        "credentials",
        "key",
        "keys",
        "apikey",
        "token",
        "tokens",
        "secret",
        "secrets",
        "bearer",
        "cookie",
        "cookies",
        "otp",
        "sas",
        "jwt",
        "signature",
        "sig",
    ]
)
# What says so within a longer word too: HFTOKEN, dbpassword, githubpat is beyond us.
_WITHIN = lazy_pattern(r"passw|passphrase|secret|credential|apikey|authkey|accesskey|privatekey|token(?!iz|is)|.pwd$")
_MANY = frozenset(("keys", "tokens", "passwords", "cookies"))  # a number with them is a count
_COUNTED = lazy_pattern(r"[-+]?[\d_]+(?:\.\d*)?(?:[eE][-+]?\d+)?|true|false|none", re.IGNORECASE)
_NOT_SECRET = frozenset(("PWD", "OLDPWD"))  # of every shell: the current folder
_SECRET = frozenset(("--notify", "TDBG_NOTIFY"))  # tdbg's own: whoever has the URL of a webhook may write to it
_WORD = lazy_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_NAME = r"[A-Za-z_][\w.-]*"
_VALUE = lazy_pattern(r"\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?|[^\s,;&)\]}\"']+")
_NAMED = lazy_pattern(rf"(?<![\w.-])(?P<name>{_NAME})\\?[\"']?\s*(?:=>|=|:(?!//))\s*\\?(?=[^\s=])")
_OPTION = lazy_pattern(rf"(?<![\w-])(?P<name>--?{_NAME})\\?[\"']?,?\s+\\?(?=[\"']?[^\s-])")
_URL = lazy_pattern(r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#@\"']*(?:@[^\s/?#@\"']*)*@")
# "basic training" is prose: in a text, not in an assignment, a short word in lower case (or with a capital), or a number, is no credential.
_BEARER = lazy_pattern(
    r"\b(?P<name>bearer|basic|digest|negotiate)"
    r"(?P<sep>\s*[:=][\s:=]*|(?:(?<=[:=]\s\w{6})|(?<=[:='\"]\w{6}))\s+|\s+(?!\(|(?-i:[A-Za-z]?[a-z]{0,14}|\d{1,3})[.!?:]*(?![^\s,;)])))(?P<value>[^\s\"',;)\]}]+)",
    re.IGNORECASE,
)
_HEADER = lazy_pattern(
    r"\b(?P<name>(?:proxy-)?authorization|x-[\w-]{0,40}(?:key|token|auth)[\w-]{0,40}|(?:set-)?cookie)(?P<sep>\\?[\"']?\s*[:=]\s*\\?[\"']?)"
    r"(?P<value>[^\"'\n]+)",
    re.IGNORECASE,
)
# Well-known shapes that are secrets by themselves.
_SHAPES = lazy_pattern(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[opusr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|sk-[\w-]{20,}|"
    r"https?://(?:hooks\.slack(?:-gov)?\.com|[\w.-]+\.webhook\.office\.com|[\w.-]*discord(?:app)?\.com/api/webhooks|"
    r"[\w.:-]+/hooks/(?=[\w-]{20}))/?[^\s\"'<>)\]}]+|"
    r"xox[abpr]-[\w-]{10,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,1000}\.[\w-]{10,}\.[\w-]*)"
)
# A text without any of this holds no secret that is known: most texts are passed by one look.
_SUSPECT = [
    "pass",
    "pwd",
    "pw",
    "secret",
    "cred",
    "token",
    "auth",
    "key",
    "bearer",
    "basic",
    "digest",
    "negotiate",
    "cookie",
    "pat",
    "otp",
    "jwt",
    "sas",
    "signature",
    "sig",
    "://",
    "hf_",
    "gho_",
    "ghp_",
    "ghu_",
    "ghs_",
    "ghr_",
    "glpat-",
    "sk-",
    "xox",
    "akia",
    "eyj",
]
_CLASS = lazy_pattern(r"(?:Error|Exception|Warning|Interrupt)$")
_WEAK = ("key", "pass", "auth", "pat", "sas", "signature", "sig", "pw")
_CODE = lazy_pattern(r"[(\[]|\w\.[A-Za-z_]")
# What is remembered of a secret's value: neither a path nor words with a short number, as names of columns and layers are.
_REMEMBERED = lazy_pattern(r"(?!/|\.{1,2}/|~|[A-Za-z]:\\)(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])\S{8,4096}")
_LONG_RANDOM = lazy_pattern(r"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])\S{16,}")  # for a name that says little, such as a key
_WORDS_AND_NUMBERS = lazy_pattern(r"(?:[A-Za-z]*\d{0,3}[_.:/-])*[A-Za-z]*\d{0,3}")
_MAX_REMEMBERED = 200
_remembered: tuple[str, ...] = ()  # secrets that were met by their name, the longest first: one may begin another
_LONGEST_JUDGED = 512  # characters of a value by which it is judged: not each of many names rescans all that follows
_SHORTEST = 6  # of a bare value in running text: `key = ids[i]` is code, no secret


def is_secret_name(name: str) -> bool:
    """True if the value that goes by this name may be a secret."""
    if name in _NOT_SECRET:
        return False
    if name in _SECRET:
        return True
    words = [word.lower() for word in _WORD.findall(name)]
    joined = "".join(words)
    return any(word in _WORDS or _WITHIN.search(word) for word in words) or bool(_WITHIN.search(joined))


def redact_value(name: str, value: str) -> str:
    """The value that goes by a name, masked where that name says it is a secret; else as `redact_text` has it.

    From then on `redact_text` blots it out wherever it stands, unless it may be a word or a path.
    """
    if value and is_secret_name(name) and not (_is_count_name(name) and _COUNTED.fullmatch(value)):
        _remember_value(name, value)
        return MARK
    return redact_text(value, strict=True)


def _remember_value(name: str, value: str) -> None:
    global _remembered
    if value in _remembered or len(_remembered) >= _MAX_REMEMBERED or not _REMEMBERED.fullmatch(value):
        return
    if _WORDS_AND_NUMBERS.fullmatch(value) or (_is_weak_name(name) and not _LONG_RANDOM.fullmatch(value)):
        return
    _remembered = tuple(sorted((*_remembered, value), key=len, reverse=True))


def remember_secret(value: str) -> None:
    """Have `redact_text` mask a value from now on, whatever it looks like."""
    global _remembered
    if value and value not in _remembered:
        _remembered = tuple(sorted((*_remembered, value), key=len, reverse=True))


def _is_weak_name(name: str) -> bool:
    """True if nothing but a word that has other meanings says that the value is a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    return not any((word in _WORDS and word not in (*_WEAK, *_MANY)) or _WITHIN.search(word) for word in words)


def _is_count_name(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    return not any((word in _WORDS or _WITHIN.search(word)) and word not in _MANY for word in words)


def redact_env(environ: "Mapping[str, str]") -> dict[str, str]:
    """Variables, with the values of those that may be secrets masked."""
    return {name: redact_value(name, value) for name, value in environ.items()}


def redact_flags(flags: "Mapping[str, object]") -> "dict[str, object]":
    """Debug flags of a run, with the texts of those that may be secrets masked."""
    return {name: redact_value(name, value) if isinstance(value, str) else value for name, value in flags.items()}


def remember_secrets(*tables: "Mapping[str, object]") -> None:
    """Have values that go by the name of a secret masked in every text from now on."""
    for table in tables:
        for name, value in table.items():
            if isinstance(value, str):
                redact_value(name, value)


def redact_argv(argv: "Sequence[str]") -> list[str]:
    """A command line with the values of options that may be secrets masked, in whatever form they are written."""
    kept: list[str] = []
    hides = ""  # the option whose value follows
    for word in argv:
        if hides and (not word.startswith("-") or (len(word) > 2 and not word.startswith("--"))):
            kept.append(_redact_operand(hides, word))
            if not _expects_more_values(hides):
                hides = ""
            continue
        hides = ""
        name, equals, value = word.partition("=")
        if equals and "://" not in name and not _is_document(name):
            kept.append(f"{name}={MARK if name == '-k' and value else redact_value(name, value)}")
        elif re.fullmatch(r"-k\S*[^a-z\s-]\S*", word):  # -kVALUE; a word of letters is an option
            kept.append(f"-k{MARK}")
        else:
            kept.append(redact_text(word, strict=True))
            hides = word if _expects_value(word) else ""
    return kept


def _is_document(name: str) -> bool:
    return any(sign in name for sign in "{[\n\"' ")


def _redact_operand(option: str, word: str) -> str:
    if option == "-k":
        return redact_value("key", word)
    return redact_value(option, word) if is_secret_name(option) else _redact_user(word)


def _expects_value(word: str) -> bool:
    """True for an option, or a key of a configuration (``WANDB.API_KEY``), whose value may be a secret."""
    if word.startswith("-"):
        return word in ("-k", "-u", "--user", "--proxy-user") or (word != "--" and is_secret_name(word))
    return bool(re.fullmatch(r"(?:[A-Za-z_]\w*\.)+\w+|[A-Z][A-Z0-9_]+", word)) and is_secret_name(
        "." + word.rpartition(".")[2]
    )


def _expects_more_values(word: str) -> bool:
    return word.startswith("-") and word != "-k" and is_secret_name(word) and _is_count_name(word)


def _redact_user(word: str) -> str:
    """``user:password`` without the password."""
    name, colon, password = word.partition(":")
    return f"{name}:{MARK}" if colon and password else word


def redact_text(text: str, *, strict: bool = False) -> str:
    """A text with what looks like a secret in it masked: URLs, headers, ``password=...``, JSON.

    strict: for what was typed or configured; a value counts there however short it is. Cost: 1 us where nothing is suspect.
    """
    for value in _remembered:
        if value in text:
            text = text.replace(value, MARK)
    lowered = text.lower()
    if not any(word in lowered for word in _SUSPECT):
        return text
    text = _URL.sub(rf"\g<scheme>{MARK}@", text)
    text = _HEADER.sub(_mask_match, text)
    text = _BEARER.sub(_mask_match, text)
    text = _SHAPES.sub(MARK, text)
    is_secret = _is_secret_value if strict else _is_surely_secret
    return _mask_named_values(_NAMED, _mask_named_values(_OPTION, text, is_secret), is_secret)


def _mask_match(found: "Match[str]") -> str:
    return f"{found['name']}{found['sep']}{_mask_value(found['value'])}"


def _mask_value(value: str) -> str:
    """The mark, in the quotes of the value."""
    quote = value[0] if value[0] in "\"'" else ""
    return f"{quote}{MARK}{quote if len(value) > 1 and value[-1] == quote else ''}"


def _mask_named_values(pattern: "re.Pattern[str]", text: str, is_secret: "Callable[[str, str], bool]") -> str:
    """The text with the values of secret names masked. Cost: one pass, whatever the text."""
    kept: list[str] = []
    done = at = 0
    while found := pattern.search(text, at):
        at = found.end()
        value = _VALUE.match(text, at, at + _LONGEST_JUDGED) if is_secret_name(found["name"]) else None
        if value is not None and is_secret(found["name"], value[0]):
            value = _VALUE.match(text, at) or value
            kept += [text[done:at], _mask_value(value[0])]
            done = at = value.end()
    return "".join([*kept, text[done:]])


def _is_secret_value(name: str, value: str) -> bool:
    return not (_is_count_name(name) and _COUNTED.fullmatch(value)) and not value.startswith(MARK)


def _is_surely_secret(name: str, value: str) -> bool:
    """In running text a name with one weak word (`KeyError: 'x'`, `missing keys: a`) says nothing yet."""
    if _CLASS.search(name) or _is_count_name(name) or value.startswith(MARK):
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    if len(words) == 1 and words[0] in _WEAK:
        return False
    return value[0] in "\"'" or (len(value) >= _SHORTEST and not _CODE.search(value))


def count_masked(value: object) -> int:
    """How many marks stand in plain data."""
    if isinstance(value, str):
        return value.count(MARK)
    if isinstance(value, dict):
        return sum(map(count_masked, value.values()))
    return sum(map(count_masked, value)) if isinstance(value, list | tuple) else 0
