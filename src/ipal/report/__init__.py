"""Tables, figures and pages made from stored runs. No torch: a report can be made anywhere.

paper.py        what the paper prints, and why we differ where that was examined
statistics.py   mean and standard deviation, paired intervals, ranks
collect.py      which stored run belongs to which row
cells.py        what tables are made of
tables.py       the tables of benches; Markdown, LaTeX and CSV of them
styles.py       colours and markers of methods, placement of labels
figures.py      the figures
drift.py        tables and figures of `ipal drift`
frame.py        stored runs as a table of pandas
build.py        tables with captions, the folder of the report, the tables inside a hand-written page
page/           one HTML page of a run, or of several compared
"""
