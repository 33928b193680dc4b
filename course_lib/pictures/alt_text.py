"""A picture with its words. JupyterLab gives a PNG no text alternative, so readers get it as HTML, which has one.

A notebook that is committed keeps the PNG beside its sentence: GitHub shows that, and nbval compares it.
"""

import base64
from html import escape
from typing import Any


def with_alt_text(bundle: dict[str, Any], words: str) -> dict[str, Any]:
    """The MIME bundle with its PNG as an <img> whose alt text is `words`, below a table where it has one."""
    rest = {mime: data for mime, data in bundle.items() if mime != "image/png"}
    png = bundle.get("image/png")
    if png is None:
        return rest
    data = png if isinstance(png, str) else base64.b64encode(png).decode()
    image = f'<img alt="{escape(words)}" src="data:image/png;base64,{data.strip()}" style="max-width: 100%">'
    return {**rest, "text/html": rest.get("text/html", "") + image}
