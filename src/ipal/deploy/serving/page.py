"""Two HTML pages without scripts or external resources: what is served, and the OpenAPI description of its routes."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from pydantic_core import to_json

from ipal.deploy.serving.schema import listed

STYLE = """
:root { color-scheme: light dark; }
html { background: #fff; color: #161616; }
a { color: #0645ad; }
@media (prefers-color-scheme: dark) { html { background: #161616; color: #ececec; } a { color: #9cc4ff; } }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: .8rem; border: 1px solid #8888; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; }
dt { font-weight: 600; }
dd { margin: 0; overflow-wrap: anywhere; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid; padding-top: 1rem; }
main { overflow-x: auto; }
code { font-family: ui-monospace, monospace; }
td:first-child { white-space: nowrap; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8885; }
"""


def _whole(title: str, *parts: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main><h1>{escape(title)}</h1>{''.join(parts)}</main></body></html>"
    )


def front_page(facts: Mapping[str, Any], host: str, *, guarded: bool) -> str:
    """What is served, and a request to copy."""
    classes, features = facts["classes"], facts["feature_names"]
    around = f"all nodes within {facts['hops']} hops of those in question, and their degrees in the whole graph"
    rows = {
        "Method": facts["method"],
        "Version": facts["version"],
        "Classes": f"{len(classes)}: {listed(classes)}",
        "Features": f"{facts['features']} numbers for each node" + f": {listed(features)}" * bool(features),
        "A request needs": f"features and edges of {around}; as JSON or .npz",
    }
    about = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in rows.items())
    # Two nodes with one feature each, whatever the number of features.
    x = {"indices": [0, 0], "indptr": [0, 1, 2], "values": [1, 1], "shape": [2, facts["features"]]}
    body = to_json({"x": x, "edge_index": [[0], [1]]}).decode()
    token = '  -H "Authorization: Bearer $IPAL_TOKEN" \\\n' if guarded else ""
    curl = f"curl http://{host}/predict \\\n{token}  -H 'Content-Type: application/json' \\\n  -d '{body}'"
    links = '<a href="/docs">All routes</a>, <a href="/memory">the model in detail</a>, <a href="/metrics">metrics</a>.'
    return _whole(
        "Predictions over HTTP",
        f"<dl>{about}</dl><h2>A request to copy</h2>",
        f"<pre><code>{escape(curl)}</code></pre><p>{links}</p>",
    )


def page(description: Mapping[str, Any]) -> str:
    """The description of all routes."""
    info = description["info"]
    parts = [
        f"<p>{escape(info['description'])}</p>",
        '<p>For programs: <a href="/openapi.json">/openapi.json</a> (OpenAPI).</p>',
    ]
    models = description["components"]["schemas"]
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(route['summary'])}.</p>")
            for kind, content in route.get("requestBody", {}).get("content", {}).items():
                parts += [f"<h3>Body as <code>{escape(kind)}</code></h3>", _fields(content["schema"])]
            parts.append(_answers(route["responses"], models))
    return _whole(info["title"], *parts)


def _answers(responses: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    rows, fields = [], ""
    for status, answer in responses.items():
        rows.append((status, answer["description"]))
        schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
        model = schema.get("$ref", "").rpartition("/")[2]
        if status == "200" and model:
            fields = "<h3>A good answer</h3>" + _fields(models[model])
    return "<h3>Answers</h3>" + _table(("status", "meaning"), rows) + fields


def _fields(schema: Mapping[str, Any]) -> str:
    if "properties" not in schema:
        return f"<p>{escape(schema.get('description', ''))}</p>"
    needed = schema.get("required", [])
    rows = [
        (name, _kind(field), "yes" if name in needed else "", field.get("description", ""))
        for name, field in schema["properties"].items()
    ]
    return _table(("name", "kind", "always", "meaning"), rows)


def _kind(field: Mapping[str, Any]) -> str:
    """A type in words."""
    either = field.get("oneOf") or field.get("anyOf")
    if either:
        return " or ".join(dict.fromkeys(map(_kind, either)))
    kind = str(field.get("type", "anything"))
    return f"list of {_kind(field['items'])}" if kind == "array" and "items" in field else kind


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + f"<td><code>{escape(row[0])}</code></td>" + "".join(f"<td>{escape(c)}</td>" for c in row[1:]) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
