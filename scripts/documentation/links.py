"""Pages link to files of the repository, which a code host shows and the built documentation does not have.

Such a link becomes the file's path as text. One that leads nowhere is a warning, and so ends a strict build.
"""

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
log = logging.getLogger("mkdocs.plugins.links")

OUTWARD = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>\.\./[^)\s#]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that leave the documentation's folder into text."""
    folder = Path(page.file.abs_src_path).parent if page.file.abs_src_path else ROOT / "docs"
    return OUTWARD.sub(lambda link: _as_text(link, folder, page.file.src_uri), markdown)


def _as_text(link: re.Match[str], folder: Path, page: str) -> str:
    target = (folder / link["target"]).resolve()
    if target.is_relative_to(ROOT / "docs"):
        return link[0]
    if not target.exists() or not target.is_relative_to(ROOT):
        log.warning("%s links to %s, which is no file of the repository.", page, link["target"])
    path = target.relative_to(ROOT).as_posix()
    text = link["text"].strip("`")
    return f"`{path}`" if text == path or text.endswith(path) else f"{link['text']} (`{path}`)"
