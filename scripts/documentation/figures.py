"""Drawings of our own stand in the page itself, so that they take its colours, light or dark.

`![what it shows](figures/NAME.svg)` stays an ordinary image on a code host.
"""

import re
from pathlib import Path
from typing import Any

IMAGE = re.compile(r'<p>\s*<img alt="(?P<alt>[^"]*)" src="(?P<source>(?:\.\./)*figures/[\w-]+\.svg)"\s*/?>\s*</p>')


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """Put the drawings in place of their images."""

    def drawn(image: re.Match[str]) -> str:
        path = (Path(config.docs_dir) / page.file.src_uri).parent / image["source"]
        svg = re.sub(r"<\?xml.*?\?>", "", path.read_text(encoding="utf-8")).strip()
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{image["alt"]}" ', 1)
        return f'<div class="drawing">{svg}</div>'

    return IMAGE.sub(drawn, html)
