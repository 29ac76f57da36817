"""Files for contributors: the workflow calls what exists, forms can be read, and the wheel's metadata render."""

import re
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from packaging.metadata import Metadata

from tests.conftest import PROJECT
from tests.snippets import blocks

FORMS = sorted(path for path in (PROJECT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def make_targets(text: str) -> set[str]:
    return set(re.findall(r"^make (\w+)$", text, re.MULTILINE))


def test_the_workflow_and_the_hooks_run_targets_of_the_makefile() -> None:
    workflow = yaml.safe_load((PROJECT / ".github" / "workflows" / "test.yml").read_text())
    called = {step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step}
    hooks = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())
    called |= {hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]}
    assert called == {"make test", "make dist", "make check"}
    defined = set(re.findall(r"^(\w+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    assert make_targets("\n".join(called)) <= defined


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_what_github_needs(path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


@pytest.mark.parametrize(
    "path", [*PROJECT.glob("*.md"), *PROJECT.glob("*/README.md")], ids=lambda path: str(path.relative_to(PROJECT))
)
def test_links_of_pages_outside_the_site_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", path.read_text()):
        name, _, anchor = target.partition("#")
        found = path.parent / name
        assert found.exists(), target
        titles = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, (
            target
        )


def test_the_metadata_of_the_wheel_render(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyPI would show them; the version is that of the citation, and the newest of the changelog."""
    backend = pytest.importorskip("hatchling.build", reason="`make test` installs hatchling")
    monkeypatch.chdir(PROJECT)
    written = (tmp_path / backend.prepare_metadata_for_build_wheel(str(tmp_path)) / "METADATA").read_bytes()
    found = Metadata.from_email(written, validate=True)
    version = str(found.version)
    assert yaml.safe_load((PROJECT / "CITATION.cff").read_text())["version"] == version
    assert re.findall(r"^## \[(.*?)\]", (PROJECT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == version
    assert (found.description_content_type, found.license_expression) == ("text/markdown", "MIT")
    page = MarkdownIt().enable("table").render(found.description or "")
    assert page.count("<table>") > 1
    assert page.count("<pre>") == len(blocks(PROJECT / "README.md"))
    assert not re.search(r"^(#|```|\|)", page, re.MULTILINE), "Markdown that was not understood"
