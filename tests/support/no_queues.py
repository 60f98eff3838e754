"""A pytest plugin for pymemcache's own tests: its delete tests find no queue, as they find no key in memcached.

memcached's flush_all leaves no key behind. A queue stays when it is emptied, so those of the test before are deleted.
"""

import pytest

from tests.support.wire import connected


@pytest.fixture(autouse=True)
def no_queues(request: pytest.FixtureRequest) -> None:
    if request.node.originalname == "test_delete":
        options = request.config.option
        with connected(f"{options.server}:{options.port}") as client:
            client.send(b"delete key noreply\r\ndelete prefixkey noreply\r\nversion\r\n")
            client.read_until(b"VERSION ")
