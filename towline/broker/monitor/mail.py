"""Notices by e-mail. Sending blocks, and runs in a thread."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import Final

from towline.errors import BadRequest, Unavailable
from towline.settings import BrokerSettings

__all__ = ["send_mail"]

PATIENCE_S: Final = 15.0


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
