"""Names of stores on a database, for tests."""

from __future__ import annotations

from towline.store.sql import (
    Database,
    Ownership,
    Roster,
    SqlSettings,
    SqlStore,
    database,
    open_sql,
    parse_url,
    prepare_database,
)
from towline.store.sql.database import Connection
from towline.store.sql.errors import NOT_ENCRYPTED, Fault, classify, explain
from towline.store.sql.ownership import Lease
from towline.store.sql.read import range_reader
from towline.store.sql.schema import migrate, tables
from towline.store.sql.schema.privileges import NEEDED
from towline.store.sql.schema.server_checks import problems
from towline.store.sql.write.encoding import TEXT
from towline.store.sql.write.projection import Projection
from towline.store.sql.write.transaction import fence
