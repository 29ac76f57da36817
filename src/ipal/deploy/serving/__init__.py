"""Predictions over HTTP.

bodies.py   requests: described, parsed, and written by clients, who need no extra for it
served.py   the model in use, a bounded queue of requests before it, and what it answers
app.py      routes, access, metrics
server.py   listening, and the processes
"""
