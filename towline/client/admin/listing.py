"""The lists of a broker's topics and groups, as a whole."""

from __future__ import annotations

from typing import Final

import msgspec

from towline.client.link.flow import Flow, ask
from towline.protocol.monitor import GroupRow, ListPage, PageListed, TopicRow

__all__ = ["whole_list"]

PAGE: Final = 1_000


def whole_list(request: ListPage) -> Flow[PageListed]:
    """The whole list of a broker, page by page: a list that is added up with others' cannot be cut before."""
    first, topics, groups = 0, list[TopicRow](), list[GroupRow]()
    while True:
        page = yield from ask(msgspec.structs.replace(request, first=first, limit=PAGE), PageListed)
        topics += page.topics
        groups += page.groups
        first += PAGE
        if first >= page.total:
            return PageListed(page.total, topics, groups, page.lines)
