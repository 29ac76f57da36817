"""One self-contained HTML page about one run, or comparing several. No torch, no network, no second file.

choose.py      names -> runs
confusion.py   counts of confused classes -> recalls, confusion of tasks, of old and new classes
parts.py       what a page is made of: numbers, charts, sections
plots.py       charts as plain dicts; colours by name, so that the page can change its theme
single.py      the sections of one run: scores.py, training.py, cost.py, setup.py
comparison.py  runs grouped by seed, compared within one protocol
write.py       template + style + scripts -> one file
"""

from ipal.report.page.choose import choose
from ipal.report.page.write import default_path, make_page

__all__ = ["choose", "default_path", "make_page"]
