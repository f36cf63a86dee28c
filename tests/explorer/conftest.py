"""One server for all tests of the page, because starting it takes seconds."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.explorer.browser import Site
from tests.explorer.server_process import ServerProcess, run_server


@pytest.fixture(scope="session")
def server_process() -> Iterator[ServerProcess]:
    """The server of `regard explore`. It keeps the sessions of all tests, because a closing page may use one."""
    with run_server(max_sessions=200) as server:
        yield server


@pytest.fixture(scope="session")
def shared_site(server_process: ServerProcess, browser: Any) -> Site:
    return Site(server_process, browser)


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    yield shared_site
    shared_site.close_pages()
