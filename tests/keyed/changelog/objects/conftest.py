"""A server for each test."""

import pytest

from tests.support.s3 import s3_server


@pytest.fixture
def server():
    with s3_server() as running:
        yield running
