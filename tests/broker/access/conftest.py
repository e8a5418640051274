from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.access.secured import Secured, secured


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("secured")) as one:
        yield one
        assert "Traceback" not in one.process.errors, one.process.errors
