"""Formulas in ```math fences become MathML when the documentation is built: no script, no fonts, no network."""

import re
from typing import Any

from latex2mathml.converter import convert

# What the converter does not know: an operator's name, which is set upright.
NAMES = re.compile(r"\\(arg)(?![a-zA-Z])")


def formula(source: str, *_: Any, **__: Any) -> str:
    """LaTeX as MathML, which browsers draw, read aloud and copy."""
    known = NAMES.sub(r"\\operatorname{\1}", source.strip())
    drawn = convert(known, display="block")
    if "\\" in drawn:
        raise ValueError(f"A part of this formula cannot be drawn: {source}")
    return f'<div class="formula">{drawn}</div>'


def on_config(config: Any) -> None:
    """Let the fences of the language `math` be drawn."""
    options = config.mdx_configs.setdefault("pymdownx.superfences", {})
    options.setdefault("custom_fences", []).append({"name": "math", "class": "math", "format": formula})
