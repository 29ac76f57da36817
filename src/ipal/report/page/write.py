"""Template, style and scripts as one self-contained file."""

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from ipal.errors import ConfigError
from ipal.report.collect import Comparison, Run
from ipal.report.page.comparison import several_runs
from ipal.report.page.plots import Chart, Page
from ipal.report.page.single import one_run
from ipal.system.files import check_target, make_folder, write_atomically


def make_page(
    benches: Sequence[Comparison], runs: Sequence[Run], path: Path | None = None, remarks: Sequence[str] = ()
) -> Path:
    """Write the page of one run, by default into its folder, or the comparison of benches and runs; returns the path.

    `remarks` are sentences on runs that could not be taken.
    """
    is_one = len(runs) == 1 and not benches
    path = path or (runs[0].folder.path / "report.html" if is_one else Path("report") / "runs.html")
    check_target(path)
    if path.is_dir() or path.suffix not in {".html", ".htm"}:
        raise ConfigError(f"{path} is no HTML file: name one that ends in .html, as -o {path / 'page.html'}.")
    content = render(one_run(runs[0]) if is_one else several_runs(benches, runs, remarks))
    make_folder(path.parent)
    write_atomically(path, content)
    return path


def render(page: Page) -> str:
    """The page as one HTML text."""
    shown = [part for section in page.sections for part in section.content if isinstance(part, Chart)]
    charts = {one.key: {**one.spec, "changes": one.changes} for one in shown}
    numbers = json.dumps(charts, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    static = files("ipal.report.page") / "static"
    scripts = {name: (static / f"{name}.js").read_text(encoding="utf-8") for name in ("theme", "charts", "page")}
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts.values()]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (  # only these scripts run, nothing is loaded or sent
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ipal.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        page=page,
        policy=policy,
        style=(static / "page.css").read_text(encoding="utf-8"),
        scripts=scripts,
        packed=base64.b64encode(gzip.compress(numbers.encode(), mtime=0)).decode(),  # or they would be most of a page
    )
