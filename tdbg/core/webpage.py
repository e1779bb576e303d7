"""HTML files of one piece: their template filled in, their data as JSON that no markup can leave, scripts by their hash.

Standard library alone; graphs are drawn by plotly, whose script is put into the page.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import IO

from tdbg.core.errors import TdbgError
from tdbg.core.lazy_pattern import lazy_pattern

# Plotly adds styles of a map's unless an element of this id is there: the page's policy would refuse them.
STYLED = lazy_pattern(r'document\.getElementById\("([0-9a-f]{64})"\)')


def as_json(value: object) -> bytes:
    """JSON that cannot end a script: no ``<`` and ``>`` in it, nothing but ASCII."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode("ascii")


def content_hash(text: str) -> str:
    """What a Content-Security-Policy calls a script or a style: its SHA-256 in base64."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def fill_template(text: str, names: dict[str, str]) -> str:
    """The template with its names filled in, each once: what is put in is not looked at again."""
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[0]), text)


def write_graphs(
    file: IO[bytes],
    package: str,
    title: str,
    data: object,
    *,
    shared: Sequence[str] = (),
    own: Sequence[str] = ("page",),
) -> None:
    """Write the page with graphs whose body, style and script lie in the folder ``web`` of a package.

    data: plain and finite; the script finds it as JSON. shared: names of styles and scripts in tdbg/core/web that come
    before the page's own, which are called ``own``. The page may load nothing and run only the two scripts whose hashes it names. Raises TdbgError
    without plotly, OSError.
    """
    plotly = load_plotly_script()
    body = _read_template(package, "web/body.html")
    style, script = (
        "".join(
            [
                *(_read_template("tdbg.core", f"web/{name}.{kind}") for name in shared),
                *(_read_template(package, f"web/{name}.{kind}") for name in own),
            ]
        )
        for kind in ("css", "js")
    )
    page = _read_template("tdbg.core", "webpage.html").replace("{body}", body)
    names = {
        "title": html.escape(title),
        "style": style,
        "script": script,
        "plotly": plotly,
        "data": as_json(data).decode("ascii"),
        "script_hash": content_hash(script),
        "plotly_hash": content_hash(plotly),
        "style_hash": content_hash(style),
        "empty_hash": content_hash(""),
        "guards": "".join(f'<template id="{name}"></template>' for name in find_styled_ids(plotly)),
    }
    file.write(fill_template(page, names).encode("utf-8", "backslashreplace"))


def find_styled_ids(script: str) -> list[str]:
    """The ids of elements whose presence keeps plotly from adding styles."""
    return sorted(set(STYLED.findall(script)))


def load_plotly_script() -> str:
    """Plotly's script, out of its package. What would end the script element there is written in another way."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise TdbgError("--html needs plotly", "install the extra: pip install 'tdbg[html]'") from None
    text: str = get_plotlyjs()
    return text.replace("</script", "<\\/script").replace("\r\n", "\n").replace("\r", "\n")


def _read_template(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
