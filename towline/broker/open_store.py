"""Opening the store that the `store` setting names."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from towline.clock import SYSTEM, Clock
from towline.errors import BadRequest, StoreFailed
from towline.settings import BrokerSettings
from towline.store.log import LogSettings, LogStore
from towline.store.memory import MemoryStore
from towline.store.spi import Store

if TYPE_CHECKING:
    from towline.store.sql import SqlSettings

__all__ = ["open_store", "sql_settings"]


async def open_store(settings: BrokerSettings, *, clock: Clock = SYSTEM) -> Store:
    scheme, colon, rest = settings.store.partition(":")
    if colon and scheme == "memory" and not rest:
        return MemoryStore(settings.capacity_messages, settings.capacity_bytes, clock)
    if colon and scheme == "file" and rest:
        limits = LogSettings(segment_bytes=settings.segment_bytes, min_free_bytes=settings.min_free_bytes)
        folder = (Path(rest).expanduser() if rest.startswith("~/") else Path(rest)).absolute()
        try:
            return await LogStore.open(folder, limits, clock=clock)
        except OSError as error:
            advice = _advice(error)
            what = f"{error.filename}: " if error.filename and not advice else ""
            raise StoreFailed(
                f"the folder {folder} cannot be opened: {what}{error.strerror or error}{advice}"
            ) from None
    if scheme == "mysql":
        return await _open_sql(settings, clock)
    hint = f"; for a folder: file:{settings.store}" if settings.store.startswith((".", "/", "~")) else ""
    raise BadRequest(f"store {settings.store!r}: write memory:, file:DIR or mysql://USER@HOST:PORT/DATABASE{hint}")


def sql_settings(settings: BrokerSettings) -> SqlSettings:
    """The settings of the database."""
    try:
        from towline.store.sql import parse_url
    except ImportError as error:
        raise BadRequest(f"the SQL store needs more packages ({error.name}): pip install 'towline[sql]'") from None
    return parse_url(
        settings.store,
        password_file=settings.store_password_file,
        tls_ca=settings.store_tls_ca,
        wait_s=settings.store_wait_s,
    )


async def _open_sql(settings: BrokerSettings, clock: Clock) -> Store:
    database = sql_settings(settings)
    from towline.store.sql import open_sql

    return await open_sql(
        database,
        owner=settings.name,
        address=settings.listen,
        max_frame_bytes=settings.max_frame_bytes,
        clock=clock,
    )


def _advice(error: OSError) -> str:
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "; this user must be able to write there: change that, or choose another folder"
        case errno.ENOTDIR | errno.EEXIST:
            return "; a file is in the way: choose another folder"
        case _:
            return ""
