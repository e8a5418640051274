"""Names of the processes that load generators start, for tests."""

from __future__ import annotations

from towline.load.broker import BrokerProcess
