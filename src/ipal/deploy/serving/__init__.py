"""Predictions over HTTP.

bodies.py   requests: written by clients, described, and parsed
served.py   the model in use, a bounded queue of requests before it, and what it answers
app.py      routes, access, metrics
server.py   listening, and the processes

bodies.py works without the libraries of the extra `serve`, for clients.
"""
