"""Mode update: the API, and the fence's treatment of the tokens."""

from __future__ import annotations

import asyncio
import pathlib
import threading
from typing import Any, Iterator

import pytest
from served import Served
from suite.clock import until

from palisade import AsyncClient, Client, Invalid, LeaseLost, LockHeld
from palisade.fences import Pass, Stale
from palisade.fences.files import Folder


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with served.client() as client:
        yield client


def test_a_reader_becomes_the_writer_and_a_reader_again(client: Client) -> None:
    with client.lock("report", update=True, client_id="me", metadata="why") as reader:
        assert (reader.shared, reader.update) == (True, True)
        with reader.upgrade(wait=0) as writer:
            assert (writer.shared, writer.update, writer.client_id) == (False, False, "me")
            assert writer.token > reader.token
            assert not reader.held
            assert not reader.lost.is_set()
            with pytest.raises(LeaseLost) as over:
                reader.check()
            assert over.value.code == "not_held"
            again = writer.downgrade()
            assert (again.shared, again.update) == (True, False)
            assert again.token > writer.token
            assert again.release() == "released"
        assert reader.release() == "over"
    assert client.show("report").holder is None


def test_what_readers_send_late_is_refused_after_the_writer_claimed(client: Client, tmp_path: pathlib.Path) -> None:
    reports = Folder(tmp_path)
    reader = client.lock("report", update=True).acquire()
    late = Pass(reader.token, reader.authority, "report")
    reports.claim(reader)
    with reader.upgrade(wait=0) as writer:
        # A control: until the writer claims, nothing refuses them.
        reports.append(late, "/a", b"late\n")
        reports.claim(writer)
        reports.append(writer, "/a", b"new\n")
        with pytest.raises(Stale):
            reports.append(late, "/a", b"late\n")
        with pytest.raises(LeaseLost):
            reports.append(reader, "/a", b"late\n")
    assert (tmp_path / "a").read_text() == "late\nnew\n"


def test_a_denial_names_a_reader_that_was_in_the_way(client: Client) -> None:
    with client.lock("report", shared=True, client_id="slow"), client.lock("report", update=True) as reader:
        with pytest.raises(LockHeld) as held:
            reader.upgrade(wait="50ms")
        assert held.value.holder is not None
        assert held.value.holder.client_id == "slow"
        reader.check()
        assert client.show("report").waiters == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"update": True, "shared": True}, "shared or for update"),
        ({"update": True, "permits": (1, 2)}, "shared lock or for permits"),
    ],
)
def test_mode_update_is_one_mode(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        Client("http://127.0.0.1:1").lock("report", **arguments).acquire()


def test_a_wrong_upgrade_is_named_and_changes_nothing(client: Client, served: Served) -> None:
    with client.lock("report", shared=True) as plain, pytest.raises(Invalid, match="update=True"):
        plain.upgrade()
    ends: list[Exception] = []

    def upgrade() -> None:
        try:
            reader.upgrade()
        except LeaseLost as lost:
            ends.append(lost)

    with client.lock("report", shared=True), client.lock("report", update=True) as reader:
        with pytest.raises(Invalid, match="0 ms"):
            reader.upgrade(wait=-1)
        waiting = threading.Thread(target=upgrade)
        waiting.start()
        assert until(lambda: client.show("report").waiters == 1)
        with pytest.raises(Invalid, match="under way already"):
            reader.upgrade(wait=0)
        reader.check()
    # The release ended the upgrade.
    waiting.join(20)
    assert len(ends) == 1
    assert served.show("report").holder is None


async def waiting(client: AsyncClient, count: int) -> None:
    """Returns when so many requests wait."""
    async with asyncio.timeout(60):
        while (await client.show("report")).waiters != count:
            await asyncio.sleep(0.01)  # real time: asked again, up to a deadline


def test_asyncio_upgrades_and_gives_up(served: Served) -> None:
    async def run() -> None:
        async with served.async_client() as client:
            reader = await client.lock("report", update=True, ttl="2s").acquire()
            beside = await client.lock("report", shared=True).acquire()
            task = asyncio.ensure_future(reader.upgrade(wait="60s"))
            await waiting(client, 1)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await waiting(client, 0)
            reader.check()
            assert await reader.release() == "released"
            await beside.release()
            async with client.lock("report", update=True) as reader, await reader.upgrade() as writer:
                assert writer.token > reader.token

    asyncio.run(run())
    assert served.show("report").holder is None
