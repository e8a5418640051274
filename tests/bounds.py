"""What bounds each container of the broker, its stores and the console: see "What the broker holds in memory" in
docs/operations.md.

Who adds a container adds it here, under what bounds it. If nothing does, it needs a limit, something that happens
at the limit, and a test that fills it, which stands in `FILLS`.
"""

from __future__ import annotations

NUMBER = "a number in the source; the oldest goes, or nothing is taken"
SETTING = "a setting: connections, ids, bytes on the way, the alike"
RETRIES = "the retry queue: 1,000,000 entries a group"

BOUNDS: dict[str, str] = {
    "topics (20,000), groups (1,000 a topic) and shards (65,536) that there are": """
        broker.Catalog.groups broker.Catalog.topics
        broker.Catalog.dropped broker.Catalog.leaving
        broker._Changes._unheard broker._Changes.unsaved
        broker.Stats.topics broker.TopicFacts.groups
        broker.Dispatcher._changed broker.Dispatcher.lanes broker.Dispatcher.oldest
        broker.Dispatcher.streams
        broker.GroupExpiry._noted broker.GroupExpiry._told
        broker.Groups._young broker.Groups.burying
        broker.Lane._watchers
        broker.ProducersFile._ends
        broker.Snapshots._before broker.Snapshots._noted broker.Snapshots._slots_before
        broker.Snapshots._written
        broker.Listing._sorted
        broker.Topic.groups broker.Topic.lanes broker.Topics
        delivery.Group.ends delivery.Group.firsts delivery.Group.mean_bytes delivery.Group.next
        delivery.Schedule.counts delivery.Schedule.dropped
        delivery.Shards._dues delivery.Shards._open delivery.Shards.waiting
    """,
    "streams: of topics and groups that are there, and --max-gone-streams of deleted ones": """
        broker.GoneStreams._names delivery.Dedup.gone
        store.Streams store.MemoryStore._streams
        store.TopicTables._indexed store.TopicTables._indexing store.TopicTables._made
        store.TopicTables._viewed
        store.Streams._by_name store.Streams._names
        store.Sweeper._streams store.FrameReader._locks
    """,
    "a document, while it is read or written: what it shows": """
        broker._Document.rules broker._Document.tokens broker._Document.users
        broker._Found.tokens broker._Broker.realms
        broker._Document.active broker._Document.changes
        broker._Groups.groups broker._Topics.lines broker._Topics.topics
        broker._Unused.groups broker._Unused.removed
        broker.Hold.positions
        broker._Document.ends broker._Document.gone broker._Document.ids
        broker._Document.lanes broker._Document.producers
        broker._Document.seen
        broker._Kept.brokers broker._Kept.clear
        broker._Offsets.groups delivery.ProducersSnapshot.producers
        store._Head.runs store.Report.damages store.Report.unindexed
        store._Groups.groups store._Offsets.groups store._Topics.lines
        store._Topics.topics
    """,
    "one page of the console that is open: what it shows, and where the pages before it began": """
        console.LetterPages._starts console.LetterPages._untils
        console._Delayed.shown console._Delayed.starts
        console._Browser.bounds console._Browser.found
        console.Reasons.counts console.Resend.failed
        console.KeyedList._rows console.LetterFilter.found console.Table._page
    """,
    "connections over HTTP: 1,000, and a page each": """
        connection_limit.ConnectionLimit._visitors
        console.HttpServer._connections console.SearchTurns._own
        console.Session.pages
    """,
    "callers of REST: 200, and what each may have at a time": """
        console.Callers._callers console.Callers._forgotten
        console.Callers._opening
        console.Held.messages console.Pulls._held console.Pulls._opening
        console.Pulls._seats
    """,
    "kinds of streams and documents: a handful, by name": """
        store.MemoryStore._documents store.MemoryStore._floors
        store.Projection._known store.SharedDocuments._known
    """,
    "what documents show: topics and groups": """
        broker._Store.kept_back
        store.Projection._groups store.Projection._offsets
        store.Projection._lines store.Projection._shards store.Projection._topics
    """,
    "segments that there are, and what each holds of a stream": """
        store.Stream.rows store.IndexCache._verified
        store.OfflineStreams._positions store.OfflineStreams._sealed store.OfflineStreams.streams
        store.Seen._grown store.Seen._rows
        store.KeyBuilder._waiting
    """,
    "segments that are not sealed yet: a few, of --segment-bytes each": """
        store.Stream.hot store.Scanner._names store.Sealer._jobs
        store.Segment.forgotten store.Segment.raised store.Segment.runs
        store.Segment.trims
        store.SegmentFiles._written
    """,
    "the start: empty when it is over": """
        broker.Snapshots.groups broker.Snapshots.rests
        store._Recovery._floors store._Recovery._known store._Recovery._sealed
    """,
    "one request, or one look at alarms, and its own limit": """
        alarms.Look._by_kind alarms.Look._changes alarms.Look._seen
        broker._Packing._runs broker._Reading._kept
        broker.Placed.new
        broker.Settlement._gathered broker.Settlement._lost broker.Settlement._refused
        broker._Scan._dead broker._Scan._messages broker._Scan._steps
        delivery.Screened.fresh delivery.Screened.frames delivery.Screened.seen
        delivery.Screened.twins
        delivery.Running.members delivery.Running.records
        delivery._Batch.parts
        frame.Frame._numbers frame.Frame._texts frame.Series._numbers frame.Series._texts
        store.Unit.buffers store.Unit.entries
        store.Job.copies store.Job.entries store.Job.events store.Job.keyed
        store.Job.made store.Job.statements store.Job.tables store.Job.trims
        store._Taken.chunks store._Taken.lost store._Oldest._frames
    """,
    NUMBER: """
        alarms.RuleBook.changes alarms.RuleBook.rules alarms.Watch.active
        broker.AccountStore.rules broker.AccountStore.tokens broker.AccountStore.users
        broker.AlarmMonitor._notices broker.AlarmMonitor._told
        broker.AlarmMonitor._under_way broker.AlarmMonitor._waiting
        broker.AuditLog._older broker.AuditLog._recent broker.AuditLog._to_close
        broker.AuditLog._to_drop
        broker.Backups._held
        broker.PrefixSubscription._news broker.PrefixSubscription._pulls broker.PrefixSubscriptions._away
        broker.GroupExpiry._removed
        broker.Guard._decided
        broker.TimeSeries._groups broker._Points._values
        broker.ShardHomes._lower broker.MetricsServer._known
        broker.Lane._recent
        broker.Passwords._right
        broker.PullLog._late
        broker.Membership.nodes
        broker.Scheduler._under_way
        broker.Session._tasks
        broker.Subscriptions
        broker.Topics._asked
        broker.LoginAttempts._by_name broker.LoginAttempts._by_origin
        delivery.Publications.sinks delivery.Publications.staged
        delivery.Schedule.answers delivery.Schedule.floors
        delivery.Slot.cancelled
        delivery.SettledPulls delivery.SettledPulls.reduced
        delivery.Transactions._due delivery.Transactions.finished
        delivery.Transactions.open
        console.Limiter._failed console.Sessions._sessions
        frame.Spare._pieces frame.Spare._room
        store.Eras._eras
        store._COMPILED store._QUERIES
        store.StreamReader._reported
        store.Connection._prepared store.Connection._retired
        store.Database._idle
        store.Writer._free store.Writer._turns
    """,
    SETTING: """
        broker.Connection._backlog broker.Connection._outgoing
        broker.ServerState._pressed broker.ServerState.connections
        broker.AnswerBudget._shares broker.AnswerBudget._waiting
        broker.AnswerShare._answers broker.Connection._queue
        broker.TableSnapshot.loose broker.TableSnapshot.parts
        broker.Slots._left broker.Slots._taken broker.Slots.named
        broker.Lane._pending broker.Appender._under_way
        delivery.Dedup._fresh delivery.Dedup._keys delivery.Dedup._places
        delivery.Dedup._values
        delivery.Producers._fresh
        delivery.Producers._windows delivery._Window.frames delivery._Window.order
        store.IndexCache._maps store.SegmentFiles._open
        store.Writer._syncing store.Writer._waiting
        store.Writer._queue
        store._Stream.kept
        store.FrameCache._chunks store.FrameCache._firsts
    """,
    "connections, and what each may have at a time": """
        broker.Access.watchers
        broker.TransactionChecks._waiters
        broker.Broker._tasks
        broker.Consumers._deserted
        broker.Dispatcher._waiters broker.Dispatcher._watching
        broker.Dispatcher.copying broker.Dispatcher.members
        broker.PrefixSubscriptions._subscriptions
        broker.Handbacks._under_way
        broker.Member.held
        broker.Passwords._changing broker.Passwords._looking
        broker.Staging._coming
        broker.Pulls._takers broker.Pulls._tasks
        broker.Meter.holders
        broker.RegistryTable._there broker.RegistryTable._written
        broker.Turns._locks
        broker.FairExecutor._busy broker.FairExecutor._waiting
        console.Limiter._under_way
    """,
    "another table of the same object, which has as many": """
        broker.AlarmMonitor._saved broker.Membership.clear delivery.Publications._owned
    """,
    "a deque with a length": "broker.GroupFacts._failures broker.Stats._took",
    "a subscription: the topics that it has": """
        broker.PrefixSubscription._coming broker.PrefixSubscription._failing broker.PrefixSubscription._touched
        broker.PrefixSubscription._joining broker.PrefixSubscription._members
        broker.PrefixSubscription._ready broker.PrefixSubscription._short
    """,
    "users, tokens and rules that there are (10,000 each)": """
        broker.AccountStore._stored
        broker.Access._meters broker.Access.last_used_us
        broker.Rights._allows broker.Rights._denies
    """,
    "brokers of the cluster that are known (100), and realms (64)": """
        broker.Gossip._aliases broker.Gossip._asking broker.Gossip._caught_up
        broker.Gossip._said broker.Gossip._seen_alarms broker.Gossip._talks
        broker.ShardHomes._reports broker._Report.groups broker._Report.kept broker._Report.pending
        broker._Report.topics
        broker.Realms._doubted broker.Realms._moves
        broker.Realms._dead broker.Realms._free_since broker.Realms._holders
        broker.Realms._moving broker.Realms._names broker.Realms._tasks broker.Realms.owned
    """,
    "unsettled messages: max_in_flight of each consumer": """
        broker.Consumers._orphans broker.MessageLimits._pulls
        delivery.Group._deadlines delivery.Group.in_flight delivery.Group.leases
        delivery.Lease._attempts delivery.Lease.gone delivery.Lease.open delivery.Lease.settled
        delivery.OpenState._dying delivery.OpenState._kept delivery.OpenState._leases
    """,
    RETRIES: """
        delivery.PartSet._lanes delivery.Ranges._blocks
        delivery.RetryQueue._dues delivery.RetryQueue._kinds delivery.RetryQueue._numbers
        delivery.RetryQueue._ready delivery.RetryQueue._waiting
    """,
    "prepared transactions (50,000)": "broker.TransactionChecks._ready broker.PreparedTransactions._damaged",
    "what is stored: retention drops it": """
        broker.ScheduleJournal._ends broker.ScheduleJournal._pending
        broker.RefusedMessages._to_try
        broker.Refusals._held
        broker.Scheduler._rewriting
        delivery.Dying delivery.Dying._lanes delivery.Group.dying delivery.Group.resent
        delivery.DueIndex._heap
        delivery.Publications.running delivery.Running.held
        delivery.Schedule.slots delivery.Slot.ahead delivery.Slot.held
        delivery.Slot.runs
    """,
    "what never changes: a few names of fields, settings, or listeners": """
        broker.Catalog._lines
        broker.Stats.on_walk store.ConfigFile._lists
        broker._library protocol._plan
        console._sessions console.HttpServer.servers console.Hosts._names
        console.Callers._options
        broker.Dispatcher.counts delivery.Group.counters
        broker.AnswerBudget.reads
        broker.LoopLag._before broker.LoopLag._longest broker.LoopLag._remind_s
        broker.LoopLag._unreported
        broker.MetricsServer._hosts broker.Webhooks._hosts broker.Webhooks._networks
        broker.Holds._names broker.Holds._reminded broker.LoginAttempts._gateways
        broker.OverdueMessages._reminded
        broker.Listing._places
        store.Histogram.counts
    """,
}

FILLS: dict[str, str] = {
    "test_a_table_holds_no_more_than_its_limit": """
        alarms.RuleBook.changes alarms.RuleBook.rules alarms.Watch.active
        broker.AuditLog._recent broker.Guard._decided broker.LoginAttempts._by_name broker.LoginAttempts._by_origin
        broker.ShardHomes._lower broker.TimeSeries._groups
        console.Limiter._failed
        delivery.Publications.sinks delivery.SettledPulls
        delivery.Transactions._due delivery.Transactions.finished delivery.Transactions.open
    """,
    "test_right_passwords_are_remembered_up_to_a_limit": "broker.Passwords._right",
    "test_a_cluster_knows_a_limited_number_of_brokers": "broker.Membership.nodes",
    "test_topics_that_no_broker_has_are_not_remembered_for_ever": "broker.Topics._asked",
    "test_backups_at_a_time_are_limited": "broker.Backups._held",
    "test_pulls_of_a_prefix_and_consumers_that_may_come_back_are_limited": """
        broker.PrefixSubscription._pulls broker.PrefixSubscriptions._away
    """,
    "test_frames_at_hand_and_events_that_are_late_are_few": """
        broker.Lane._recent broker.PullLog._late
    """,
    "test_staged_records": "delivery.Publications.staged",
    "test_answers_to_those_who_cancelled": "delivery.Schedule.answers",
    "test_how_often_the_clock_was_set_back": "delivery.Schedule.floors",
    "test_how_often_the_clock_of_a_store_was_wrong": "store.Eras._eras",
    "test_cancelled_messages": "delivery.Slot.cancelled",
    "test_units_of_delayed_messages_under_way": "broker.Scheduler._under_way",
    "test_rules_of_access": "broker.AccountStore.rules",
    "test_users_and_tokens": "broker.AccountStore.tokens broker.AccountStore.users",
    "test_notices_of_alarms": """
        broker.AlarmMonitor._notices broker.AlarmMonitor._told
        broker.AlarmMonitor._under_way broker.AlarmMonitor._waiting
    """,
    "test_groups_that_expired": "broker.GroupExpiry._removed",
    "test_news_of_a_prefix": "broker.PrefixSubscription._news",
    "test_metrics_by_who_reads_them": "broker.MetricsServer._known",
    "test_lost_records_that_were_reported": "store.StreamReader._reported",
    "test_statements_that_were_compiled": "store._COMPILED",
    "test_queries_of_tables_that_are_ready": "store._QUERIES",
    "test_requests_of_a_connection": "broker.Session._tasks",
    "test_pulls_of_which_something_was_taken": "delivery.SettledPulls.reduced",
    "test_frames_of_a_database_at_hand": """
        store.FrameCache._chunks store.FrameCache._firsts
    """,
    "test_indexes_of_segments_that_are_at_hand": "store.IndexCache._maps",
    "test_segments_that_are_open_for_reading": "store.SegmentFiles._open",
    "test_figures_over_time_take_no_more_than_a_few_megabytes": "broker._Points._values",
    "test_no_more_is_kept_than_a_size_over_many_starts": """
        broker.AuditLog._older broker.AuditLog._to_close broker.AuditLog._to_drop
    """,
    "test_who_logs_in_at_the_console_again_and_again_logs_nobody_else_out": """
        console.Sessions._sessions
    """,
    "test_what_is_over_a_count_is_refused_as_too_many": "broker.Subscriptions",
    "test_a_connection_over_the_limit_is_told_so_and_older_clients_try_again": """
        broker.ServerState.connections
    """,
    "test_there_is_a_limit_to_what_is_kept": "frame.Spare._pieces frame.Spare._room",
    "test_more_tables_are_written_than_statements_are_kept": """
        store.Connection._prepared store.Connection._retired
    """,
    "test_the_next_transaction_begins_before_its_turn_and_order_is_kept": """
        store.Database._idle store.Writer._free store.Writer._turns
    """,
    "test_a_flood_of_small_requests_without_reading_is_held_back": """
        broker.Connection._backlog broker.Connection._outgoing broker.Connection._queue
    """,
    "test_readers_that_stand_still_share_one_budget_and_are_cut": """
        broker.AnswerBudget._shares broker.AnswerShare._answers
    """,
    "test_one_who_gives_up_or_is_refused_leaves_nothing_behind": """
        broker.AnswerBudget._waiting
    """,
    "test_frames_on_their_way_to_the_store": """
        broker.Appender._under_way broker.Lane._pending broker.ServerState._pressed
    """,
    "test_a_table_is_in_its_parts_whole_and_they_are_few": """
        broker.TableSnapshot.loose broker.TableSnapshot.parts
    """,
    "test_documents_that_are_not_named_any_more_are_emptied_and_used_again": """
        broker.Slots._left broker.Slots._taken broker.Slots.named
    """,
    "test_an_id_takes_no_more_memory_than_is_said": """
        delivery.Dedup._fresh delivery.Dedup._places
    """,
    "test_ids_that_come_anew_after_a_purge_are_bounded_as_well": """
        delivery.Dedup._keys delivery.Dedup._values
    """,
    "test_the_producers_that_were_silent_longest_are_forgotten_first": """
        delivery.Producers._fresh delivery.Producers._windows delivery._Window.frames delivery._Window.order
    """,
    "test_a_full_store_refuses_before_it_numbers_and_recovers": """
        store.Writer._queue store.Writer._syncing store.Writer._waiting store._Stream.kept
    """,
    "test_a_group_that_fails_too_much_gets_nothing_new_until_it_has_caught_up": """
        delivery.PartSet._lanes delivery.Ranges._blocks
        delivery.RetryQueue._dues delivery.RetryQueue._ready delivery.RetryQueue._waiting
    """,
    "test_a_queue_whose_entries_are_all_due_at_another_time_is_full_sooner": """
        delivery.RetryQueue._kinds delivery.RetryQueue._numbers
    """,
}
"""By the name of the test that fills them beyond it, the containers with a limit of their own. What others hold is
bounded by what is there, or is stored."""
