"""One browser and one server for all tests of the page that a process runs: starting them takes seconds."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.explorer.browser import Site, chromium
from tests.explorer.served import Served, serving


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """The example as `regard look` shows it. It keeps the texts of all tests: a page that is being closed may still ask
    about one."""
    with serving(keeps=200) as made:
        yield made


@pytest.fixture(scope="session")
def shared(served: Served, browser: Any) -> Site:
    return Site(served, browser)


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    yield shared
    shared.rest()
