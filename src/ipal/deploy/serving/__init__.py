"""Predictions over HTTP.

limits.py     limits of a request
bodies.py     request bodies, written for clients
schema.py     requests and answers as pydantic models
questions.py  request bodies, parsed
answers.py    the model in use, and the processes that answer by it
metrics.py    metrics for Prometheus
app.py        routes and access
server.py     listening, following the model's file, graceful shutdown

bodies.py works without the libraries of the extra `serve`, for clients.
"""
