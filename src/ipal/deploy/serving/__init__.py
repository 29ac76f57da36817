"""Predictions over HTTP.

limits.py       limits of a request, and the errors beyond them
bodies.py       request bodies, read and written
answers.py      the thread that predicts, one request at a time
metrics.py      metrics for Prometheus
schema.py       inputs and outputs of each route, for OpenAPI
page.py         that description as an HTML page without scripts
app.py          routes and access
connections.py  closes slow connections (slow-loris protection)
server.py       listening and graceful shutdown

bodies.py works without the libraries of the extra `serve`, for clients.
"""
