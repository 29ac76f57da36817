"""Tables, figures and pages made from stored runs. No torch: a report can be made anywhere.

paper.py        what the paper prints, from paper.yaml
statistics.py   mean and standard deviation, paired intervals, ranks
collect.py      stored runs as rows over seeds, and rows that can be compared: those of a bench, or of one protocol
cells.py        what tables are made of; Markdown, LaTeX and CSV of them
tables.py       the tables of comparisons with their captions
figures.py      the figures
build.py        the folder of a report
frame.py        stored runs as a table of pandas
page/           one HTML page of a run, or of several compared
"""
