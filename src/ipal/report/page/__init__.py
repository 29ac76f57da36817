"""One self-contained HTML page about one run, or comparing several. No torch, no network, no second file.

plots.py       what a page is made of: numbers, charts, sections; colours by name, so that the page can change its theme
single.py      the page of one run
comparison.py  the page of several: runs grouped by seed, compared within one protocol
write.py       template + style + scripts -> one file
"""

from ipal.report.page.write import make_page

__all__ = ["make_page"]
