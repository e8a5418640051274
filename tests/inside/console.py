"""Names of `towline.console`, for tests."""

from __future__ import annotations

from towline.console import pages, sessions
from towline.console.dead_letters.filter import LetterFilter
from towline.console.dead_letters.pages import LetterPages, name_of, number_of
from towline.console.dead_letters.reasons import Reasons
from towline.console.dead_letters.walk import STEP_BYTES
from towline.console.number_format import plain
from towline.console.rest import access, alarms, client_pool, cluster, groups, held_leases, messages, topics
from towline.console.rest.app import STATUS, rest_app
from towline.console.rest.client_pool import Callers
from towline.console.rest.fields import body_model, query_names
from towline.console.rest.held_leases import HELD_BYTES, TIDY_S, Pulls
from towline.console.security.http_connection import (
    BODY_S,
    CONNECTIONS_OF_ADDRESS,
    HEAD_MAX_BYTES,
    HEAD_S,
    UNREAD_MAX_BYTES,
    HttpConnection,
    HttpServer,
)
from towline.console.sessions import TRIES, TRIES_OF_ADDRESS, Limiter, Sessions
from towline.console.widgets.body_view import HEAD_BYTES, Form, guess, preview, render
