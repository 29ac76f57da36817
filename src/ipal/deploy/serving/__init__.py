"""Predictions over HTTP.

limits.py       limits of a request, and the errors beyond them
bodies.py       request bodies, written for clients
questions.py    request bodies, parsed
tables.py       tables of zeros in JSON
answers.py      a model that answers, and can be replaced
workers.py      the same in a process of its own
answerer.py     the queue before them, and their model
explanations.py explanations instead of predictions
metrics.py      metrics for Prometheus
schema.py       inputs and outputs of each route, for OpenAPI
page.py         that description, and what is served, as HTML pages without scripts
app.py          routes and access
connections.py  closes slow connections (slow-loris protection)
server.py       listening, following the model's file, graceful shutdown

bodies.py works without the libraries of the extra `serve`, for clients.
"""
