"""What bounds each container of the broker, its stores and the console: see "What the broker holds in memory" in
docs/operations.md.

Who adds a container adds it here, under what bounds it. If nothing does, it needs a limit, something that happens
at the limit, and a test in tests/broker/test_bounds.py.
"""

from __future__ import annotations

BOUNDS: dict[str, str] = {
    "topics (20,000), groups (1,000 a topic) and shards (65,536) that there are": """
        broker.catalog.Catalog.groups broker.catalog.Catalog.topics
        broker.catalog.Catalog.dropped broker.catalog.Catalog.leaving
        broker.catalog._Changes._unheard broker.catalog._Changes.unsaved
        broker.census.Census.topics broker.census.TopicFacts.groups
        broker.dispatcher.Dispatcher._changed broker.dispatcher.Dispatcher.lanes broker.dispatcher.Dispatcher.oldest
        broker.dispatcher.Dispatcher.streams
        broker.group_expiry.GroupExpiry._noted broker.group_expiry.GroupExpiry._told
        broker.groups.Groups._young broker.groups.Groups.burying
        broker.lane.Lane._watchers
        broker.producers_file.ProducersFile._ends
        broker.snapshots.Snapshots._before broker.snapshots.Snapshots._noted broker.snapshots.Snapshots._slots_before
        broker.snapshots.Snapshots._written
        broker.surveying.Surveyor._sorted
        broker.topic.Topic.groups broker.topic.Topic.lanes broker.topics.Topics
        delivery.group.Group.ends delivery.group.Group.firsts delivery.group.Group.mean_bytes delivery.group.Group.next
        delivery.schedule.Schedule.counts delivery.schedule.Schedule.dropped
        delivery.shards.Shards._dues delivery.shards.Shards._open delivery.shards.Shards.waiting
    """,
    "streams: of topics and groups that are there, and --max-gone-streams of deleted ones": """
        broker.remains.Remains._names
        store.log.catalogue.Catalogue store.memory.MemoryStore._streams
        store.sql.making.Maker._indexed store.sql.making.Maker._indexing store.sql.making.Maker._made
        store.sql.making.Maker._viewed
        store.sql.streams.Streams._by_name store.sql.streams.Streams._names
        store.sql.trimming.Sweeper._streams store.sql.reading.FrameReader._locks
    """,
    "a document, while it is read or written: what it shows": """
        broker.access_book._Document.rules broker.access_book._Document.tokens broker.access_book._Document.users
        broker.access_book._Found.tokens broker.roll._Broker.realms
        broker.alarming._Document.active broker.alarming._Document.changes broker.alarming._Document.rules
        broker.catalog._Groups.groups broker.catalog._Topics.lines broker.catalog._Topics.topics
        broker.group_expiry._Unused.groups broker.group_expiry._Unused.removed
        broker.holds.Hold.positions
        broker.producers_file._Document.ends broker.producers_file._Document.gone broker.producers_file._Document.ids
        broker.producers_file._Document.lanes broker.producers_file._Document.producers
        broker.producers_file._Document.seen
        broker.registry._Kept.brokers broker.registry._Kept.clear
        broker.snapshots._Offsets.groups delivery.producers.ProducersSnapshot.producers
        store.log.keys._Head.runs store.log.reader.Report.damages store.log.reader.Report.unindexed
        store.sql.projection._Groups.groups store.sql.projection._Offsets.groups store.sql.projection._Topics.lines
        store.sql.projection._Topics.topics
    """,
    "one page of the console that is open: what it shows, and where the pages before it began": """
        console.letters.NewestLetters._starts console.letters.NewestLetters._untils
        console.pages.delayed._Delayed.shown console.pages.delayed._Delayed.starts
        console.pages.messages._Browser.bounds
        console.reasons.Reasons.counts console.resending.Resending.failed
        console.rows.Rows._rows console.sifting.Sifting.found console.table.Table._page
    """,
    "connections over HTTP: 1,000, and a page each": """
        connection_limit.ConnectionLimit._visitors
        console.http_connection.HttpServer._connections
        console.sessions.Session.pages
    """,
    "callers of REST: 200, and what each may have at a time": """
        console.rest.callers.Callers._callers console.rest.callers.Callers._forgotten
        console.rest.callers.Callers._opening
        console.rest.pulls.Held.messages console.rest.pulls.Pulls._held console.rest.pulls.Pulls._opening
        console.rest.pulls.Pulls._seats
    """,
    "kinds of streams and documents: a handful, by name": """
        store.memory.MemoryStore._documents store.memory.MemoryStore._floors
        store.sql.projection.Projection._known store.sql.shared.SharedDocuments._known
    """,
    "what documents show: topics and groups": """
        broker.realms._Store.kept_back
        store.sql.projection.Projection._groups store.sql.projection.Projection._offsets
        store.sql.projection.Projection._shards store.sql.projection.Projection._topics
    """,
    "segments that there are, and what each holds of a stream": """
        store.log.catalogue.Stream.rows store.log.index.IndexCache._verified
        store.log.outside.Outside._positions store.log.outside.Outside._sealed store.log.outside.Outside.streams
        store.log.outside.Seen._grown store.log.outside.Seen._rows
        store.log.searching.KeyBuilder._waiting
    """,
    "segments that are not sealed yet: a few, of --segment-bytes each": """
        store.log.catalogue.Stream.hot store.log.scan.Scanner._names store.log.sealer.Sealer._jobs
        store.log.segment.Segment.forgotten store.log.segment.Segment.raised store.log.segment.Segment.runs
        store.log.segment.Segment.trims
        store.log.segment.SegmentFiles._written
    """,
    "the start: empty when it is over": """
        broker.snapshots.Snapshots.groups broker.snapshots.Snapshots.rests
        store.log.recovery._Recovery._floors store.log.recovery._Recovery._known store.log.recovery._Recovery._sealed
    """,
    "one request, and its own limit": """
        broker.delivering._Packing._runs broker.delivering._Reading._kept
        broker.placing.Placed.new
        broker.settling.Settling._gathered broker.settling.Settling._lost broker.settling.Settling._refused
        broker.tracing._Scan._dead broker.tracing._Scan._messages broker.tracing._Scan._steps
        delivery.dedup.Screened.fresh delivery.dedup.Screened.frames delivery.dedup.Screened.seen
        delivery.dedup.Screened.twins
        delivery.publishing.Running.members delivery.publishing.Running.records
        delivery.filling._Batch.parts
        frame.series.Series._numbers frame.series.Series._texts
        store.log.unit.Unit.buffers store.log.unit.Unit.entries
        store.sql.job.Job.copies store.sql.job.Job.entries store.sql.job.Job.events store.sql.job.Job.keyed
        store.sql.job.Job.made store.sql.job.Job.statements store.sql.job.Job.tables store.sql.job.Job.trims
        store.sql.reading._Taken.chunks store.sql.reading._Taken.lost store.sql.trimming._Oldest._frames
    """,
    "a number in the source; the oldest goes, or nothing is taken": """
        alarms.book.RuleBook.changes alarms.book.RuleBook.rules alarms.watch.Watch.active
        alarms.watch.Look._by_kind alarms.watch.Look._changes alarms.watch.Look._seen
        broker.access_book.AccessBook.rules broker.access_book.AccessBook.tokens broker.access_book.AccessBook.users
        broker.alarming.AlarmDesk._notices broker.alarming.AlarmDesk._saved broker.alarming.AlarmDesk._told
        broker.alarming.AlarmDesk._under_way broker.alarming.AlarmDesk._waiting
        broker.audit.AuditLog._older broker.audit.AuditLog._recent broker.audit.AuditLog._to_close
        broker.audit.AuditLog._to_drop
        broker.backup.Backups._held
        broker.census.Census._took broker.census.GroupFacts._failures
        broker.fan.Fan._news broker.fan.Fan._pulls broker.fan.Fans._away
        broker.group_expiry.GroupExpiry._removed
        broker.guard.Guard._decided
        broker.history.History._groups broker.history._Points._values
        broker.homes.Homes._lower broker.metrics_server.MetricsServer._known
        broker.lane.Lane._recent
        broker.passwords.Passwords._right
        broker.pull_log.PullLog._late
        broker.registry.Registry.clear broker.registry.Registry.nodes
        broker.scheduling.Scheduler._under_way
        broker.session.Session._tasks
        broker.subscriptions.Subscriptions
        broker.topics.Topics._asked
        broker.tries.Tries._by_name broker.tries.Tries._by_origin
        delivery.publishing.Publications._owned delivery.publishing.Publications.sinks
        delivery.publishing.Publications.staged
        delivery.schedule.Schedule.answers delivery.schedule.Schedule.floors
        delivery.schedule.Slot.cancelled
        delivery.settled.SettledPulls delivery.settled.SettledPulls.robbed
        delivery.transactions.Transactions._due delivery.transactions.Transactions.finished
        delivery.transactions.Transactions.open
        console.sessions.Limiter._failed console.sessions.Limiter._under_way console.sessions.Sessions._sessions
        frame.spare.Spare._pieces frame.spare.Spare._room
        store.eras.Eras._eras
        store.sql.database._COMPILED store.sql.reading._QUERIES
        store.log.reading.StreamReader._reported
        store.sql.database.Connection._prepared store.sql.database.Connection._retired
        store.sql.database.Database._idle
        store.sql.writer.Writer._free store.sql.writer.Writer._turns
    """,
    "a setting: connections, ids, bytes on the way, the alike": """
        broker.connection.Connection._backlog broker.connection.Connection._outgoing
        broker.connection.Line._pressed broker.connection.Line.connections
        broker.answer_budget.AnswerBudget._shares broker.answer_budget.AnswerBudget._waiting
        broker.answer_budget.AnswerShare._answers broker.connection.Connection._queue
        broker.generations.Generations.loose broker.generations.Generations.parts
        broker.generations.Slots._left broker.generations.Slots._taken broker.generations.Slots.named
        broker.lane.Lane._pending broker.sending.Sender._under_way
        delivery.dedup.Dedup._fresh delivery.dedup.Dedup._keys delivery.dedup.Dedup._places
        delivery.dedup.Dedup._values delivery.dedup.Dedup.gone
        delivery.producers.Producers._fresh
        delivery.producers.Producers._windows delivery.producers._Window.frames delivery.producers._Window.order
        store.log.index.IndexCache._maps store.log.segment.SegmentFiles._open
        store.log.writer.Writer._syncing store.log.writer.Writer._waiting
        store.log.writer.Writer._queue
        store.memory._Stream.kept
        store.sql.cache.FrameCache._chunks store.sql.cache.FrameCache._firsts
        store.sql.writer.Writer._waiting
    """,
    "connections, and what each may have at a time": """
        broker.access.Access.watchers
        broker.asking.Asking._waiters
        broker.broker.Broker._tasks
        broker.consumers.Consumers._deserted
        broker.dispatcher.Dispatcher._waiters broker.dispatcher.Dispatcher._watching
        broker.dispatcher.Dispatcher.copying broker.dispatcher.Dispatcher.members
        broker.fan.Fans._fans
        broker.handback.Handbacks._under_way
        broker.member.Member.held
        broker.passwords.Passwords._changing broker.passwords.Passwords._looking
        broker.publishing.Staging._coming broker.publishing.Staging._locks
        broker.pulls.Pulls._takers broker.pulls.Pulls._tasks
        broker.quota.Meter.holders
        broker.roll.Roll._there broker.roll.Roll._written
        broker.transactions.Escrow._turns
        broker.turns.Turns._busy broker.turns.Turns._waiting
    """,
    "a subscription: the topics that it has": """
        broker.fan.Fan._coming broker.fan.Fan._failing broker.fan.Fan._touched
        broker.fan.Fan._joining broker.fan.Fan._members broker.fan.Fan._ready broker.fan.Fan._short
    """,
    "users, tokens and rules that there are (10,000 each)": """
        broker.access_book.AccessBook._stored
        broker.access.Access._meters broker.access.Access.last_used_us
        broker.rights.Rights._allows broker.rights.Rights._denies
    """,
    "brokers of the cluster that are known (100), and realms (64)": """
        broker.cluster.Cluster._aliases broker.cluster.Cluster._asking broker.cluster.Cluster._caught_up
        broker.cluster.Cluster._said broker.cluster.Cluster._seen_alarms broker.cluster.Cluster._talks
        broker.homes.Homes._reports broker.homes._Report.groups broker.homes._Report.kept broker.homes._Report.pending
        broker.homes._Report.topics
        broker.realms.Realms._doubted broker.realms.Realms._moves
        broker.realms.Realms._dead broker.realms.Realms._free_since broker.realms.Realms._holders
        broker.realms.Realms._moving broker.realms.Realms._names broker.realms.Realms._tasks broker.realms.Realms.owned
    """,
    "unsettled messages: max_in_flight of each consumer": """
        broker.consumers.Consumers._orphans broker.limits.Limits._pulls
        delivery.group.Group._deadlines delivery.group.Group.in_flight delivery.group.Group.leases
        delivery.lease.Lease.gone delivery.lease.Lease.open delivery.lease.Lease.settled
    """,
    "the retry queue: 1,000,000 entries a group": """
        delivery.parts.PartSet._lanes delivery.ranges.Ranges._blocks
        delivery.retry.RetryQueue._dues delivery.retry.RetryQueue._kinds delivery.retry.RetryQueue._numbers
        delivery.retry.RetryQueue._ready delivery.retry.RetryQueue._waiting
    """,
    "prepared transactions (50,000)": "broker.asking.Asking._ready broker.transactions.Escrow._damaged",
    "what is stored: retention drops it": """
        broker.agenda.Agenda._ends broker.agenda.Agenda._pending
        broker.held.Held._to_try
        broker.refusals.Refusals._held
        broker.scheduling.Scheduler._rewriting
        delivery.group.Group.dying delivery.group.Group.resent
        delivery.near.Near._heap
        delivery.publishing.Publications.running delivery.publishing.Running.held
        delivery.schedule.Schedule.slots delivery.schedule.Slot.ahead delivery.schedule.Slot.held
        delivery.schedule.Slot.runs
    """,
    "what never changes: a few names of fields, settings, or listeners": """
        broker.catalog.Catalog._lines
        broker.census.Census.on_walk broker.config_file.ConfigFile._lists
        broker.heap._library protocol.versions._plan
        console.frame._sessions console.http_connection.HttpServer.servers console.origin.Hosts._names
        console.rest.callers.Callers._options
        broker.dispatcher.Dispatcher.counts delivery.group.Group.counters
        broker.answer_budget.AnswerBudget.reads
        broker.loop_lag.LoopLag._before broker.loop_lag.LoopLag._longest broker.loop_lag.LoopLag._remind_s
        broker.loop_lag.LoopLag._untold
        broker.metrics_server.MetricsServer._hosts broker.webhooks.Webhooks._hosts broker.webhooks.Webhooks._networks
        broker.holds.Holds._names broker.holds.Holds._reminded broker.tries.Tries._gateways
        broker.overdue.Overdue._reminded
        broker.surveying.Surveyor._places
        store.histogram.Histogram.counts
    """,
}
