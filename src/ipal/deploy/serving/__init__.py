"""Predictions over HTTP.

limits.py       how much a request may ask for, and what a refused one is told
archives.py     .npz files from anywhere: sizes are checked before anything is unpacked
bodies.py       from the bytes of a request to a question, and back
answers.py      a model that answers one question at a time, in a thread of its own
metrics.py      what Prometheus is told
schema.py       what each route takes and gives, for its description
page.py         that description, as a page that needs no network
app.py          routes, and who may use them
connections.py  connections that dawdle are cut off
server.py       listening, and stopping gracefully

Whoever asks questions (bodies.py) needs none of the libraries of the extra `serve`.
"""
