"""Names of `towline.spark`, for tests."""

from __future__ import annotations

from towline.spark.arrow.from_frames import NEVER_NULL
from towline.spark.catalog import FolderCatalog
from towline.spark.jobs import replay as jobs_replay
from towline.spark.jobs.analysis.message_outcomes import (
    KINDS,
    STATUSES,
    Events,
    MessageOutcomes,
    Moves,
    lives,
    override,
)
from towline.spark.jobs.analysis.reconcile import Reconciled, reconcile
from towline.spark.jobs.analysis.report import _keys, report, write_tables
from towline.spark.jobs.analysis.report_html import render
from towline.spark.jobs.analysis.trace import Window, trace
from towline.spark.jobs.archive import archive_folder, manifest
from towline.spark.jobs.archive.archive import Options, archive
from towline.spark.jobs.archive.archive_folder import ArchiveFolder
from towline.spark.jobs.archive.manifest import Archive, Entry, Writable
from towline.spark.jobs.archive.verify import verify
from towline.spark.jobs.replay import Chosen, replay
from towline.spark.jobs.session import why_not
from towline.spark.jobs.source import Source
from towline.spark.options import READ_OPTIONS, WRITE_OPTIONS, ReadOptions
from towline.spark.plan import (
    Catalogued,
    Lane,
    Position,
    Range,
    Selection,
    Where,
    check_chosen,
    cut,
    decode_ranges,
    encode_ranges,
    parse_position,
    plan,
)
from towline.spark.range_reader import Wants, read_batches
from towline.spark.sink_routing import SinkRouting, members_of, publish
from towline.spark.sources import BrokerSource, ReadSource, open_place
