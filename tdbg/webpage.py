"""HTML files of one piece: their template filled in, their data as JSON that no markup can leave, scripts by their hash.

Standard library alone.
"""

import base64
import hashlib
import json
import re
from typing import Any


def as_json(value: Any) -> bytes:
    """JSON that cannot end a script: no ``<`` and ``>`` in it, nothing but ASCII."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode("ascii")


def content_hash(text: str) -> str:
    """What a Content-Security-Policy calls a script or a style: its SHA-256 in base64."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def filled(text: str, names: dict[str, str]) -> str:
    """The template with its names filled in, each once: what is put in is not looked at again."""
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[0]), text)
