"""Names of `towline.broker`, for tests."""

from __future__ import annotations

from towline.broker import table_snapshot
from towline.broker.access import account_store, audit, authorization, login_attempts, passwords
from towline.broker.access.access_file import read_access_file
from towline.broker.access.account_store import AccountStore, Declared, Secret, Token, User, hash_secret
from towline.broker.access.accounts import OWN_TOKENS_MAX, SCOPES_MAX, put_user, who
from towline.broker.access.audit import AuditLog
from towline.broker.access.audit_files import verify
from towline.broker.access.authentication import Access, Principal
from towline.broker.access.authorization import Guard
from towline.broker.access.login_attempts import GATEWAY_FACTOR, TRIES, TRIES_OF_ORIGIN, LoginAttempts
from towline.broker.access.passwords import NOBODYS_HASH, Passwords
from towline.broker.access.quota import Meter
from towline.broker.access.rules import ROLES
from towline.broker.answer_budget import LISTS, LOOKUPS, PULLS, READS_MAX, SHARE_BYTES, AnswerBudget, AnswerShare
from towline.broker.broker import Broker
from towline.broker.browse import browse, trace
from towline.broker.cluster import membership, shard_homes
from towline.broker.cluster.format_number import FormatNumber
from towline.broker.cluster.gossip import Gossip, join_addresses
from towline.broker.cluster.membership import Membership
from towline.broker.cluster.realms import Realms, _Store
from towline.broker.cluster.routing import TOPIC
from towline.broker.cluster.shard_homes import SETTLE_S, ShardHomes
from towline.broker.consume import (
    dead_letters,
    dispatcher,
    fetch,
    groups,
    message_limits,
    prefix_subscription,
    pull_log,
    snapshots,
)
from towline.broker.consume.consumers import Consumers
from towline.broker.consume.dead_letters import EVERY_S, DeadLetterLog
from towline.broker.consume.dispatcher import Dispatcher
from towline.broker.consume.fetch import Buffers
from towline.broker.consume.member import KEEPS_UP_S, Member
from towline.broker.consume.message_limits import GRACE_US, MessageLimits
from towline.broker.consume.prefix_subscription import PrefixSubscription
from towline.broker.consume.pull_log import LATE_S, PullLog
from towline.broker.consume.snapshots import LARGE_BYTES, RENEW_S
from towline.broker.fair_executor import FairExecutor
from towline.broker.loop_lag import LAG_S, STALL_S, LoopLag
from towline.broker.monitor import alarms, stats, time_series, webhooks
from towline.broker.monitor.prometheus import exposition
from towline.broker.monitor.stats import GroupFacts
from towline.broker.monitor.time_series import GROUPS_MAX, POINTS, TimeSeries
from towline.broker.monitor.webhooks import Webhooks, masked
from towline.broker.open_store import open_store, sql_settings
from towline.broker.process.garbage_collector import GarbageCollector
from towline.broker.process.run import split_address
from towline.broker.produce import producers
from towline.broker.produce.append import Outgoing
from towline.broker.produce.producers import SILENT_US
from towline.broker.produce.producers_file import PRODUCERS, ProducersFile
from towline.broker.produce.staging import STAGED, Staging
from towline.broker.produce.transactions import CARRY_AFTER_US, MARKS, PREPARED
from towline.broker.retention import backup, group_expiry
from towline.broker.retention.backup import LEASE_S, Holdings, holdings_of, renewed_epoch
from towline.broker.schedule import queries, scheduler, timer_loop
from towline.broker.schedule.delivered_ids import FIND_MAX, find_arrivals, note_arrivals
from towline.broker.schedule.journal import MARKS as SCHEDULE_MARKS
from towline.broker.schedule.journal import ScheduleJournal
from towline.broker.schedule.refused_messages import halves
from towline.broker.server import pulls, session, subscriptions
from towline.broker.server.connection import HOLD_WRITING, Remote, State, join_small
from towline.broker.server.listener import Server
from towline.broker.server.metrics_http import FRESH_S
from towline.broker.server.requests import TABLE, Later, Own, Row
from towline.broker.server.session import Session
from towline.broker.server.tls import tls_context
from towline.broker.table_snapshot import PartName, TableSnapshot
from towline.broker.topics import topics
from towline.broker.topics.topic import RECENT_FRAMES, Topic
from towline.broker.topics.topics import Topics
