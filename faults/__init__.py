"""The fault bench: kills, full disks, damaged files, hostile commands and requests. See docs/faults.md.

python -m faults [PART ...] --seed N --count N --jobs N
"""
