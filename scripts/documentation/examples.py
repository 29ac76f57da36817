"""The page of the examples: their README, with the code of programs below their output, and the cells of notebooks."""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples"
OUTPUT = re.compile(r"```console\npython examples/(?P<name>\w+\.py)\n```\n\n```text\n.*?```", re.DOTALL)
COLAB = "https://colab.research.google.com/github"


def everything(repository: str | None) -> str:
    """The page; with buttons for Colab where `extra.repository` in mkdocs.yml says which repository it can open."""
    page = OUTPUT.sub(_with_code, (FOLDER / "README.md").read_text(encoding="utf-8"))
    page = re.sub(r"\]\((\w+)\.ipynb\)", lambda link: f"](#{link[1].replace('_', '-')})", page)
    page = re.sub(r"\[(\w+\.py)\]\(\1\)", r"`\1`", page).replace("](deploy/)", "](../examples/deploy)")
    return "\n".join([page, *(_notebook(path, repository) for path in sorted(FOLDER.glob("*.ipynb")))])


def _fence(code: str, title: str = "") -> str:
    """Not for the search: it is for words, not for names in programs."""
    return f'```{{ .python {title}data-search-exclude="" }}\n{code.strip()}\n```'


def _with_code(output: re.Match[str]) -> str:
    name = output["name"]
    code = (FOLDER / name).read_text(encoding="utf-8").split('"""', 2)[2]
    return f"{output[0]}\n\n" + _fence(code, f'title="examples/{name}" ')


def _notebook(path: Path, repository: str | None) -> str:
    """Its cells, its headings one level lower."""
    cells = [
        (cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]
    parts = [_fence(text) if kind == "code" else re.sub("^#", "##", text, flags=re.MULTILINE) for kind, text in cells]
    place = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", repository or "")
    if place:
        button = f"[Open in Colab]({COLAB}/{place[1]}/blob/main/examples/{path.name}){{ .md-button }}"
        parts.insert(1, f"{button} There, `!pip install 'ipal[pyg,pandas] @ git+{repository}'` comes first.")
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Put the page in place of the one that a code host shows."""
    return everything(config.extra.get("repository")) if page.file.src_uri == "examples.md" else markdown
