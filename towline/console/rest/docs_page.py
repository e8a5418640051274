"""The description of the REST door for people: one page without scripts, made from the OpenAPI document."""

from __future__ import annotations

import html
from collections.abc import Iterator
from string import Template
from typing import Any, Final

__all__ = ["page"]

_PAGE: Final = Template(
    """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Towline REST</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<style>body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code{font-family:ui-monospace,monospace;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:1.6rem 0 .3rem}
ul{list-style:none;margin:0;padding:0}li{padding:.35rem 0;border-top:1px solid #8884}li>b{display:inline-block;
min-width:4.5rem;font-size:.8rem}small{display:block;opacity:.75}</style></head><body>
<h1>Towline REST</h1><p>$about</p><p>For programs: <a href="openapi.json">openapi.json</a> (OpenAPI $version).</p>
$groups</body></html>"""
)


def page(document: dict[str, Any]) -> str:
    groups: dict[str, list[str]] = {}
    for method, path, operation in _operations(document):
        tag = next(iter(operation.get("tags", ())), "other")
        names = [one["name"] for one in operation.get("parameters", ()) if one.get("in") == "query"]
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        if "$ref" in body:
            names += document["components"]["schemas"][body["$ref"].rpartition("/")[2]].get("properties", {})
        given = f"<small>{html.escape(', '.join(names))}</small>" if names else ""
        words = html.escape(operation.get("summary", ""))
        groups.setdefault(tag, []).append(
            f"<li><b>{method.upper()}</b> <code>{html.escape(path)}</code> – {words}{given}</li>"
        )
    return _PAGE.substitute(
        about=html.escape(document["info"]["description"]),
        version=html.escape(document["openapi"]),
        groups="".join(f"<h2>{html.escape(tag)}</h2><ul>{''.join(lines)}</ul>" for tag, lines in groups.items()),
    )


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation
