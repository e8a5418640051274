"""Streams without an entry in the catalog, and entries that were dropped before their streams: after a crash."""

from __future__ import annotations

import logging

import msgspec

from towline.broker.topics.catalog import Catalog
from towline.broker.topics.gone_streams import trim_group
from towline.broker.topics.shards import shards_in
from towline.clock import Clock, TimeSlice, in_slices
from towline.model import LANE_STREAMS, PRIVATE, PULL_STREAMS, GroupConfig
from towline.store import Store

__all__ = ["find_uncatalogued"]

log = logging.getLogger("towline.broker")


async def find_uncatalogued(store: Store, catalog: Catalog, clock: Clock, part: TimeSlice) -> None:
    """Topics and groups that were made just before a crash: their streams are there, their entry is not yet. And groups
    that were deleted just before it: their entry is gone, their streams are not yet."""
    async for stream in in_slices(store.streams(LANE_STREAMS), part):
        topic = stream.split("/")[1]
        first, end, _ = store.bounds(stream)
        if topic not in catalog.topics and first < end:
            log.warning("topic %s is in the store but not in topics.json: added from the template", topic)
            shards = shards_in(store, topic)
            catalog.put_topic(msgspec.structs.replace(catalog.from_template(topic), shards=shards))
    async for stream in in_slices(store.streams(PULL_STREAMS), part):
        _, topic, group = stream.split("/")
        first, end, _ = store.bounds(stream)
        if (topic, group) in catalog.dropped:
            await trim_group(store, topic, group)
            continue
        unknown = (topic, group) not in catalog.groups and topic in catalog.topics
        if unknown and first < end and not group.startswith(PRIVATE):
            log.warning("group %s on topic %s is added with default settings", group, topic)
            catalog.put_group(GroupConfig(topic, group, created_at_us=clock.now_us()))
