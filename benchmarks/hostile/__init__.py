"""Requests of all kinds for benchmarks/serving.py: sound ones, and every way to misbehave that we could think of.

asking.py     a server under test, how it is asked, and the register of ways
requests.py   sound requests; wrong tokens, paths, types; too large, too slow, gone
framing.py    where a request ends: lengths that conflict, chunks, folded headers, clients that half-close
bodies.py     broken JSON and .npz files, bombs, pickles, no graphs

A way is a function that makes one request of a server and returns the status of its answer (None where there is none);
beside it stands which statuses it may have. 503, the declared overload, is always allowed. What only a proxy in front
stops is in the list of docs/serving.md, and allowed here.
"""

from hostile import bodies, framing, requests
from hostile.asking import OVERLOAD, WAYS, Sample, Target, ask

__all__ = ["OVERLOAD", "WAYS", "Sample", "Target", "ask", "bodies", "framing", "requests"]
