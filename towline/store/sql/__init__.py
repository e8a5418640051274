"""The SQL store: streams in a MySQL, MariaDB or TiDB database, in tables that people can read.

| module      | holds |
|-------------|-------|
| `settings`  | the URL, limits and times |
| `tables`    | every table, as SQLAlchemy Core; `schema` makes and upgrades them |
| `database`  | connections; `faults` what their errors mean; `checks` what is warned of at the start |
| `ownership` | realms, leases, epochs: who may write; `roster` who is there |
| `rows`      | frames as rows and back; `describe` what people read beside them; `encoding` rows as bytes |
| `projection` | documents as tables: topics, groups, progress; the view of statuses |
| `job`, `writer` | what waits for a transaction, and the turns; `transaction` what one is made of; `making` tables |
| `cache`, `reading`, `trimming` | the way out, and the end |
| `store`     | the SPI on top of all that |
| `shared`    | documents that all brokers on a database change |
"""

from towline.store.sql.database import Database
from towline.store.sql.open import open_sql, prepare_database
from towline.store.sql.ownership import MAIN, Holder, Lease, Ownership
from towline.store.sql.roster import BROKER, CONSUMER, Entry, Present, Roster
from towline.store.sql.schema.migrate import raise_number, stated_number
from towline.store.sql.settings import SqlSettings, parse_url
from towline.store.sql.shared import SharedDocuments
from towline.store.sql.store import SqlStore

__all__ = [
    "BROKER",
    "CONSUMER",
    "MAIN",
    "Database",
    "Entry",
    "Holder",
    "Lease",
    "Ownership",
    "Present",
    "Roster",
    "SharedDocuments",
    "SqlSettings",
    "SqlStore",
    "open_sql",
    "parse_url",
    "prepare_database",
    "raise_number",
    "stated_number",
]
