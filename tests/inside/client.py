"""Names of `towline.client`, for tests."""

from __future__ import annotations

from towline.client import embedded, requests
from towline.client._async.client import Client as AsyncClient
from towline.client._async.consumer import Consumer
from towline.client._sync.client import Client
from towline.client.admin import messages
from towline.client.admin.access import Quota
from towline.client.admin.dead_letters import FOUND_BYTES
from towline.client.bulk.publish import Addressed, Publisher
from towline.client.cluster.brokers import ClusterBrokers, Liveness, rendezvous
from towline.client.cluster.merge import _ordered
from towline.client.consume.ack_spool import SpooledAck
from towline.client.consume.heartbeat import HeartbeatTimer
from towline.client.consume.lease import Lease, LostLease
from towline.client.consume.message_block import MessageBlock
from towline.client.consume.outcome import Reject, Retry, describe
from towline.client.consume.pull_size import PullLimits
from towline.client.consume.subscription import Subscription
from towline.client.consume.time_limit import HandlerTimeout
from towline.client.link import transport
from towline.client.link.aio import _Wire
from towline.client.link.blocking import Dial
from towline.client.link.connection import Buffer, Call, Connection
from towline.client.link.dial import Route
from towline.client.link.flow import Flow, Start
from towline.client.link.spool_file import MAGIC, SpoolFile
from towline.client.produce import sharding, transaction_buffer
from towline.client.produce.accumulator import BatchLimits, ClusterAccumulator
from towline.client.produce.batch import Pending
from towline.client.produce.batch_sender import BatchSender
from towline.client.produce.encode import FrameEncoder
from towline.client.produce.frame_spool import FrameSpool, SpooledFrame
from towline.client.produce.reshard import cut_by_shard
from towline.client.produce.sharding import Common, Content, KnownKeys, ShardMap, _Batch, shard_of
from towline.client.produce.spooled_sender import SpooledBatchSender
from towline.client.produce.transaction import DirectTransaction, Phase, Senders
