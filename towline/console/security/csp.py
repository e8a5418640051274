"""The content security policy, and the nonces of a page's own scripts.

The toolkit starts a page with four scripts that stand in it. Each gets a nonce, made anew for each page, so that no
other script in the page runs, nor any handler in an attribute. Exceptions that the pinned version needs:

- `unsafe-eval`, on pages only: Vue compiles templates in the browser, cells of tables among them, and what the toolkit
  tells a page to do (`run_javascript`, handlers of events) is text. Both end in `new Function`.
- `unsafe-inline` of styles: Quasar, the charts and the toolkit make style elements and attributes as they go.
"""

from __future__ import annotations

import secrets
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADER", "ContentPolicy", "policy"]

HEADER: Final = "Content-Security-Policy"
_POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'{scripts}",
        "script-src-attr 'none'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "object-src 'none'",
        "frame-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_PAGE: Final = "X-NiceGUI-Content"
"""The header by which the toolkit marks its pages."""
_STARTERS: Final = (
    b'<script type="importmap">',
    b"<script>\n      addStyle = ",
    b'<script type="module">\n      import * as Vue ',
    b'<script type="module">\n      // Load DOMPurify ',
)
"""The beginnings of the toolkit's own scripts, in their order. Contents of messages stand behind the last of these, and
escaped, so that they cannot be taken for one of them."""


def policy(nonce: str = "") -> str:
    """For a page with this nonce; or for all else, where no script stands in the text, and none is made of text."""
    return _POLICY.format(scripts=f" 'nonce-{nonce}' 'unsafe-eval'" if nonce else "")


class ContentPolicy:
    """Middleware between the toolkit and the compression of its pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held: Message | None = None
        """The head of a page, until its text is there."""

        async def named(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if _PAGE in headers and HEADER not in headers:
                    held = message
                    return
            if held is not None:
                head, held = held, None
                message = _with_nonce(head, message)
                await send(head)
            await send(message)

        await self._app(scope, receive, named if scope["type"] == "http" else send)


def _with_nonce(head: Message, message: Message) -> Message:
    nonce = secrets.token_urlsafe(16)
    body: bytes = message.get("body", b"")
    at = 0
    for starter in _STARTERS:
        at = body.find(starter, at)
        if at < 0:
            break  # it is not the page that we know: its scripts do not run, and a test fails
        at += len(b"<script")
        body = b'%s nonce="%s"%s' % (body[:at], nonce.encode(), body[at:])
    headers = MutableHeaders(scope=head)
    headers[HEADER] = policy(nonce)
    headers["Content-Length"] = str(len(body))
    return {**message, "body": body}
