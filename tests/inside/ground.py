"""Names of the clock, settings and other modules that everything stands on, for tests."""

from __future__ import annotations

from towline import clock
from towline.clock import SECOND_US, SYSTEM, Clock, ManualClock, SteadyClock, SystemClock, TimeSlice
from towline.connection_limit import YIELD_S, ConnectionLimit
from towline.format import FORMAT
from towline.log_lines import LineFormatter, harmless, log_to_stderr
from towline.settings import BrokerSettings, load_settings, misspelt_variables
