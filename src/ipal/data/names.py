"""Names of graphs, as `--dataset` takes them: one, or several with commas."""

import os
import re

SIZE = re.compile(r"\s*\w+\s*=")
"""How one of several sizes begins, as in `synthetic:nodes=500,classes=3`."""


def split_names(text: str) -> list[str]:
    """`cora-ml,dblp` as two names. A path that exists is one, and so is `synthetic:nodes=500,classes=3`."""
    if "," not in text or os.path.exists(os.path.expanduser(text)):
        return [text]
    names: list[str] = []
    for part in text.split(","):
        if names and ":" in names[-1] and SIZE.match(part):
            names[-1] += f",{part}"
        else:
            names.append(part.strip())
    return names
