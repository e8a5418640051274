"""The SQL store: streams in a MySQL, MariaDB or TiDB database, in tables that people can read.

| module      | holds |
|-------------|-------|
| `settings`  | the URL, limits and times; `open` opens the store of a URL |
| `schema/`   | every table, as SQLAlchemy Core; made and upgraded; checks of the server |
| `database`  | connections; `errors` what theirs mean, `timeout` limits of time |
| `ownership` | realms, leases, epochs: the fence of every write; `roster` the brokers at present |
| `write/`    | jobs, transactions, rows, tables for people; `describe` what these show |
| `read/`     | recent frames, ranges |
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
