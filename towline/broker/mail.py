"""Notices on their way out: e-mail by SMTP, and webhooks by HTTP. Both block, and run in threads of their own."""

from __future__ import annotations

import smtplib
import ssl
import urllib.error
import urllib.request
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from towline.errors import BadRequest, Unavailable
from towline.settings import BrokerSettings

__all__ = ["masked", "post_json", "send_mail"]

PATIENCE_S: Final = 15.0
_HIDDEN: Final = "/…"


def send_mail(settings: BrokerSettings, to: tuple[str, ...], subject: str, text: str) -> None:
    """Hand one mail for all recipients to the mail server."""
    host, _, port = settings.smtp.rpartition(":")
    if not host or not port.isdigit():
        raise BadRequest(f"setting smtp {settings.smtp!r}: write HOST:PORT, for example mail.example.com:587")
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = settings.smtp_from, ", ".join(to), subject[:200]
    message["Date"], message["Message-ID"] = formatdate(), make_msgid(domain="towline.invalid")
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    context = ssl.create_default_context()
    try:
        server: smtplib.SMTP
        if settings.smtp_tls == "tls":
            server = smtplib.SMTP_SSL(host.strip("[]"), int(port), timeout=PATIENCE_S, context=context)
        else:
            server = smtplib.SMTP(host.strip("[]"), int(port), timeout=PATIENCE_S)
        with server:
            if settings.smtp_tls == "starttls":
                server.starttls(context=context)
            if settings.smtp_user:
                server.login(settings.smtp_user, _password(settings))
            refused = server.send_message(message)
    except (OSError, smtplib.SMTPException) as error:
        raise Unavailable(f"the mail server {settings.smtp} did not take the mail: {error}") from None
    if refused:
        raise Unavailable(f"the mail server {settings.smtp} refused {', '.join(sorted(refused))}")


def _password(settings: BrokerSettings) -> str:
    try:
        return Path(settings.smtp_password_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"smtp_password_file {settings.smtp_password_file}: {error}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An administrator named the address; nobody else may send us to another."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post_json(url: str, payload: dict[str, Any]) -> None:
    request = urllib.request.Request(  # noqa: S310 - rules allow http and https only
        url, msgspec.json.encode(payload), {"Content-Type": "application/json", "User-Agent": "towline"}, method="POST"
    )
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=PATIENCE_S) as answer:
            answer.read(1024)
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise Unavailable(f"webhook {masked(url)}: {error}") from None


def masked(url: str) -> str:
    """A webhook as it may be shown: its path often is its secret."""
    if url.endswith(_HIDDEN):
        return url
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{_HIDDEN}"
