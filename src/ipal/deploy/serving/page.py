"""An OpenAPI description as one HTML page without scripts or external resources."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid; padding-top: 1rem; }
main { overflow-x: auto; }
code { font-family: ui-monospace, monospace; }
td:first-child { white-space: nowrap; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8885; }
"""


def page(description: Mapping[str, Any]) -> str:
    """The whole page."""
    info = description["info"]
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>',
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>',
        "<body><main>",
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>",
        '<p>For programs: <a href="/openapi.json">/openapi.json</a> (OpenAPI).</p>',
    ]
    models = description["components"]["schemas"]
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(route['summary'])}.</p>")
            for kind, content in route.get("requestBody", {}).get("content", {}).items():
                parts += [f"<h3>Body as <code>{escape(kind)}</code></h3>", _fields(content["schema"])]
            parts.append(_answers(route["responses"], models))
    return "".join([*parts, "</main></body></html>"])


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
