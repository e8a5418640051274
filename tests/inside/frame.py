"""Names of `towline.frame`, for tests."""

from __future__ import annotations

from towline.frame import Frame, encode, encode_events
from towline.frame.layout import BODY, limit_of
