"""Schemathesis makes up requests from the description of the REST door: whatever comes, the answer is as described, and
never an internal error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.broker.process import BrokerProcess
from tests.inside.console import rest_app
from tests.rest.process import rest_door

schema = schemathesis.openapi.from_dict(rest_app("towline://127.0.0.1:1").openapi())


@pytest.fixture(scope="module")
def door() -> Iterator[str]:
    with BrokerProcess(max_frame_bytes=1 << 20) as process, rest_door(f"towline://127.0.0.1:{process.port}") as url:
        yield url
        assert "Traceback" not in process.errors, process.errors


@schema.parametrize()
@settings(max_examples=6, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_answer_is_as_described(case: Any, door: str) -> None:
    if isinstance(case.body, dict) and "wait_s" in case.body:
        case.body["wait_s"] = 0
    case.call_and_validate(
        base_url=door,
        checks=[not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance],
    )
