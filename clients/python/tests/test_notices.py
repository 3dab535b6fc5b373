"""A lease says that it is in danger, wanted or lost before its next renewal would. Rules N-… of the holder suite."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from typing import Any, Callable, Iterator, Optional

import pytest
from conftest import ROOT
from served import Served
from suite.clock import until
from suite.scripted import Reply as Scripted_reply
from suite.scripted import Request, Scripted, error
from suite.servers import Palisade
from test_fork import run

from palisade import AsyncClient, Client, Invalid, LeaseLost, Notice, _listen
from palisade._exchange import Exchange
from palisade._protocol import Send
from palisade.testing import MemoryServer

# Long enough that no renewal says anything in a test.
LONG = "60s"


class Told:
    """What a callback heard, and when."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.at: list[float] = []

    def __call__(self, notice: Notice) -> None:
        self.at.append(time.monotonic())
        self.notices.append(notice)

    def kinds(self) -> list[str]:
        return [notice.kind for notice in self.notices]

    def waits(self, *kinds: str) -> None:
        assert until(lambda: self.kinds() == list(kinds), 30), self.kinds()


def test_a_break_is_heard_at_once(served: Served) -> None:
    """The control hears of it from its next renewal, after a third of its fifteen seconds."""
    with served.client() as client, served.client(notices=False) as control, served.client() as other:
        told, heard = Told(), client.lock("orders", ttl=LONG).acquire()
        heard.listen(told)
        late = control.lock("late", ttl="15s").acquire()
        time.sleep(0.5)  # real time: it listens by now
        began = time.monotonic()
        other.break_lock("late", late.token, "maintenance")
        other.break_lock("orders", heard.token, "maintenance")
        assert heard.lost.wait(30)
        took = time.monotonic() - began
        assert late.lost.wait(30)
        assert took < (time.monotonic() - began) / 2
        with pytest.raises(LeaseLost, match=r"an operator revoked it \(maintenance\)") as over:
            heard.check()
        assert (over.value.code, over.value.reason) == ("revoked", "maintenance")
        told.waits("lost")
        assert (told.notices[0].why, told.notices[0].reason) == ("revoked", "maintenance")
        assert heard.wanted() == 0


def test_asyncio_hears_as_threads_do(served: Served) -> None:
    async def go() -> None:
        told = Told()

        async def callback(notice: Notice) -> None:
            await asyncio.sleep(0)  # real time: none, it lets others run
            told(notice)

        async with served.async_client() as client:
            grant = await client.lock("orders", ttl=LONG).acquire()
            grant.listen(callback)
            waiting = asyncio.create_task(client.lock("orders", wait=LONG).acquire())
            while not grant.wanted():
                await asyncio.sleep(0.01)  # real time: asked again, up to the time of the lease
            assert grant.held
            await asyncio.sleep(0.5)  # real time: the next request waits; only one that waits is told the reason
            await client.break_lock("orders", grant.token, "maintenance")
            await asyncio.wait_for(grant.lost.wait(), 15)
            await (await waiting).release()
            while told.kinds() != ["wanted", "lost"]:
                await asyncio.sleep(0.01)  # real time: as above
        assert told.notices[1].reason == "maintenance"

    asyncio.run(go(), debug=True)


def test_a_holder_hears_that_others_wait_and_that_they_left(served: Served) -> None:
    with served.client() as client, served.client() as other:
        told, grant = Told(), client.lock("orders", ttl=LONG).acquire()
        grant.listen(told)
        assert grant.wanted() == 0
        asks = [threading.Thread(target=other.lock("orders", wait="2s").try_acquire) for _ in range(2)]
        for thread in asks:
            thread.start()
        assert until(lambda: grant.wanted() == 2)
        # Registered late, it is told of the present.
        late = Told()
        grant.listen(late)
        late.waits("wanted")
        assert late.notices[0].waiters == 2
        for thread in asks:
            thread.join()
        assert until(lambda: grant.wanted() == 0)
        late.waits("wanted", "unwanted")
        assert told.notices[-1].kind == "unwanted"


def test_without_notices_a_renewal_says_who_waits(served: Served) -> None:
    with served.client(notices=False) as client, served.client() as other:
        grant = client.lock("orders", ttl="900ms").acquire()
        thread = threading.Thread(target=lambda: other.lock("orders", wait=LONG).acquire().release())
        thread.start()
        assert until(lambda: grant.wanted() == 1)
        grant.release()
        thread.join()
        assert grant.wanted() == 0


def test_one_of_several_locks_ends_all(served: Served) -> None:
    with served.client() as client, served.client() as other:
        grant = client.locks("a", "b", ttl=LONG).acquire()
        other.break_lock("b", grant.token)
        assert grant.lost.wait(15)
        with pytest.raises(LeaseLost) as over:
            grant.check()
        assert (over.value.code, over.value.lock) == ("revoked", "b")
        assert until(lambda: other.show("a").holder is None)


def test_a_superseded_lease_hears_of_it(served: Served) -> None:
    with served.client() as client:
        old = client.lock("orders", ttl=LONG, client_id="me").acquire()
        time.sleep(0.3)  # real time: it listens by now
        client.lock("orders", ttl=LONG, client_id="me").acquire()
        assert old.lost.wait(15)
        with pytest.raises(LeaseLost) as over:
            old.check()
        assert over.value.code == "superseded"


def test_an_upgrade_is_no_loss(served: Served) -> None:
    with served.client() as client:
        reader = client.lock("orders", ttl=LONG, update=True).acquire()
        told = Told()
        reader.listen(told)
        time.sleep(0.3)  # real time: it listens by now
        writer = reader.upgrade()
        time.sleep(0.3)  # real time: a notice would be here
        assert told.kinds() == [] and not reader.lost.is_set()
        writer.check()
        assert writer.release() == "released"


@pytest.mark.parametrize("notices", [True, False])
def test_a_suspended_lease_says_so_before_it_is_lost(notices: bool) -> None:
    server = MemoryServer()
    with server.client(notices=notices) as client:
        told, late, grant = Told(), Told(), client.lock("orders", ttl="1500ms").acquire()
        grant.listen(told)
        server.down()
        told.waits("suspended")
        left = told.notices[0].remaining
        assert left is not None and 0 < left < 1.5
        grant.check()
        grant.listen(late)
        late.waits("suspended")
        server.up()
        told.waits("suspended", "restored")
        server.down()
        assert grant.lost.wait(30)
        told.waits("suspended", "restored", "suspended", "lost")
        late.waits("suspended", "restored", "suspended", "lost")
        assert told.notices[-1].why == "expired"
        after = Told()
        grant.listen(after)
        after.waits("lost")


def test_a_release_is_told_nobody() -> None:
    with MemoryServer().client() as client:
        told, grant = Told(), client.lock("orders").acquire()
        grant.listen(told)
        grant.release()
        grant.listen(told)
        assert grant.wanted() == 0
        time.sleep(0.3)  # real time: a notice would be here
        assert told.notices == []


def test_callbacks_that_fail_and_block_disturb_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server, blocked, go_on = MemoryServer(), threading.Event(), threading.Event()

    def fails(_: Notice) -> None:
        raise SystemExit("a listener must not end anything")

    def blocks(_: Notice) -> None:
        blocked.set()
        go_on.wait(60)

    with server.client(notices=False) as client, pytest.raises(Invalid, match="callback is 5"):
        client.lock("other").acquire().listen(5)  # type: ignore[arg-type]
    with server.client() as client:
        told, grant = Told(), client.lock("orders", ttl="1500ms").acquire()
        for callback in (fails, blocks, told):
            grant.listen(callback)
        server.down()
        assert blocked.wait(30)
        server.up()
        # Renewed for several leases' time.
        time.sleep(4)  # real time: a lease that nobody renews is over
        grant.check()
        told.waits("suspended", "restored")
        server.revoke("orders")
        told.waits("suspended", "restored", "lost")
        go_on.set()
    assert "a listener failed at the notice 'suspended'" in caplog.text


class Counting:
    """An exchange that notes the listens which pass."""

    def __init__(self, inner: Exchange, listens: list[Send]) -> None:
        self._inner, self._listens = inner, listens

    def send(self, url: str, send: Send, until_ns: int) -> Any:
        if send.path == "/v1/listen":
            self._listens.append(send)
        return self._inner.send(url, send, until_ns)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def counted(client: Client) -> list[Send]:
    listens: list[Send] = []
    threads = client._listening._here.here()
    make = threads._exchange
    threads._exchange = lambda: Counting(make(), listens)
    return listens


def named(listens: list[Send]) -> set[str]:
    return {grant["resource_id"] for send in listens for grant in (send.body or {})["grants"]}


def test_a_thousand_leases_are_ten_requests() -> None:
    server = MemoryServer()
    with server.client() as client:
        listens = counted(client)
        grants = [client.lock(f"lock-{number}", ttl="10m").acquire() for number in range(1_000)]
        assert until(lambda: len(named(listens)) == 1_000)
        assert all(len((send.body or {})["grants"]) <= 100 for send in listens)
        assert sum(thread.name == "palisade: listen" for thread in threading.enumerate()) == 10
        for number in (0, 500, 999):
            server.revoke(f"lock-{number}")
            assert grants[number].lost.wait(15)
        assert sum(grant.held for grant in grants) == 997
    assert until(lambda: not any(thread.name == "palisade: listen" for thread in threading.enumerate()))


def test_a_short_lease_causes_no_request_and_a_client_can_do_without() -> None:
    server = MemoryServer()
    with server.client() as client, server.client(notices=False) as off:
        listens = counted(client)
        for _ in range(200):
            client.lock("orders").acquire().release()
        off.lock("off", ttl=LONG).acquire()
        assert listens == []
        kept = client.lock("kept", ttl=LONG).acquire()
        assert until(lambda: named(listens) == {"kept"})
        kept.release()
        assert off._listening._here._made == {}


@contextlib.contextmanager
def answering(server: Palisade, listen: Callable[[Request], Optional[Scripted_reply]]) -> Iterator[Scripted]:
    """A server whose answers to a listen are these."""
    scripted = Scripted((server.host, server.port))
    scripted.decide = lambda request: listen(request) if request.path == "/v1/listen" else None
    try:
        yield scripted
    finally:
        scripted.close()


BROKEN = {
    "nothing, at once": Scripted_reply(200, {"notices": []}),
    "another grant": Scripted_reply(200, {"notices": [{"resource_id": "x", "fencing_token": 1, "event": "ended"}]}),
    "busy": error(429, "busy"),
    "unavailable": error(503, "unavailable"),
    "a proxy's": Scripted_reply(504, b"<html>"),
    "no answer": Scripted_reply(status=0),
}


@pytest.mark.parametrize("kind", [*BROKEN, "the same again"])
def test_a_listen_that_fails_backs_off_and_suspends_nothing(server: Palisade, kind: str) -> None:
    def same(request: Request) -> Scripted_reply:
        about = {name: request.body["grants"][0][name] for name in ("resource_id", "fencing_token")}
        return Scripted_reply(200, {"notices": [{**about, "event": "wanted", "waiters": 3}]})

    decide = answering(server, lambda request: BROKEN.get(kind) or same(request))
    with decide as scripted, Client(scripted.url) as client:
        # What a renewal says would be other news than the same again.
        told, grant = Told(), client.lock("orders", ttl="3s" if kind in BROKEN else LONG).acquire()
        grant.listen(told)
        assert until(lambda: scripted.of("listen"))
        time.sleep(3)  # real time: so long it is counted
        asked = len(scripted.of("listen"))
        # Pauses of half a second, one, and two, each at least by half.
        assert 2 <= asked <= 8
        grant.check()
        assert {"suspended", "lost"}.isdisjoint(told.kinds())


def test_without_pauses_it_would_ask_all_the_time(server: Palisade, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(_listen._Pace, "after", lambda *_: 0)
    with answering(server, lambda _: BROKEN["nothing, at once"]) as scripted, Client(scripted.url) as client:
        client.lock("orders", ttl="3s").acquire()
        assert until(lambda: len(scripted.of("listen")) > 100)


def test_a_server_of_before_is_asked_once(server: Palisade) -> None:
    answers: list[Optional[Scripted_reply]] = [error(404, "not_found")]
    with answering(server, lambda _: answers[0]) as scripted, Client(scripted.url) as client:
        grant = client.lock("orders", ttl="900ms").acquire()
        assert until(lambda: scripted.of("listen"))
        beside = client.lock("beside", ttl="900ms").acquire()
        time.sleep(1.5)  # real time: several renewals
        assert len(scripted.of("listen")) == 1
        # It is replaced by one that knows them: the connections break.
        answers[0] = BROKEN["busy"]
        client._requests.endpoints.failed(scripted.url)
        assert until(lambda: len(scripted.of("listen")) > 1)
        assert grant.held and beside.held


def test_a_request_that_is_ended_too_early_gets_shorter(server: Palisade) -> None:
    """As by a proxy that ends requests after a second and a half."""

    def ends(request: Request) -> Scripted_reply:
        time.sleep(1.5)  # real time: the proxy's
        return BROKEN["a proxy's"]

    with answering(server, ends) as scripted, Client(scripted.url) as client:
        client.lock("orders", ttl="3s").acquire()
        assert until(lambda: len(scripted.of("listen")) >= 4, 30)
        assert [each.body["wait_ms"] for each in scripted.of("listen")][:4] == [20_000, 10_000, 5_000, 2_500]


def test_a_new_lease_is_named_while_the_request_waits(server: Palisade) -> None:
    """Ended requests are at most one in a tenth of a second, however many leases come."""
    go_on = threading.Event()

    def hangs(_: Request) -> Scripted_reply:
        go_on.wait(60)
        return Scripted_reply(200, {"notices": []})

    with answering(server, hangs) as scripted, Client(scripted.url) as client:
        began = time.monotonic()
        for number in range(40):
            client.lock(f"lock-{number}", ttl=LONG).acquire()
            time.sleep(0.02)  # real time: they come one after the other

        def latest() -> int:
            return len(scripted.of("listen")[-1].body["grants"]) if scripted.of("listen") else 0

        assert until(lambda: latest() == 40)
        assert 2 <= len(scripted.of("listen")) <= (time.monotonic() - began) / 0.1 + 1
        go_on.set()


HANGS = f"""
import threading
sys.path.insert(0, {str(ROOT / "clients" / "holder-suite")!r})
from suite.scripted import Reply, Scripted
scripted = Scripted((url.split("//")[1].split(":")[0], int(url.rsplit(":", 1)[1])))
scripted.decide = lambda request: threading.Event().wait(60) if request.path == "/v1/listen" else None

def listens(number):
    end = time.monotonic() + 30
    while len(scripted.of("listen")) < number and time.monotonic() < end:
        time.sleep(0.01)  # real time: asked again, up to a deadline
    return len(scripted.of("listen"))
"""


def test_a_child_does_not_listen_on_its_parents_connection(server: Palisade) -> None:
    code = (
        HANGS
        + """
client = palisade.Client(scripted.url)
mine = client.lock("parent", ttl="60s").acquire()
listens(1)
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    told = []
    mine.listen(lambda notice: told.append(notice.why))
    child = client.lock("child", ttl="60s").acquire()
    time.sleep(0.5)  # real time: it names its own lease by now
    os.write(write, json.dumps([told, mine.wanted(), child.held]).encode())
    os._exit(0)
os.waitpid(pid, 0)
asked = [(each.connection, [grant["resource_id"] for grant in each.body["grants"]]) for each in scripted.of("listen")]
print(json.dumps([json.loads(os.read(read, 1000)), asked[0][1], asked[1][1], asked[0][0] != asked[1][0], mine.held]))
os._exit(0)
"""
    )
    assert run(code, server) == [[["not_held"], 0, True], ["parent"], ["child"], True, True]


@pytest.mark.parametrize("kind", ["threads", "asyncio", "closed loop"])
def test_a_program_ends_while_it_listens(server: Palisade, kind: str) -> None:
    ends = {
        "threads": 'held = client.lock("orders", ttl="60s").acquire(); listens(1)',
        "asyncio": "asyncio.run(go())",
        "closed loop": "loop = asyncio.new_event_loop(); loop.run_until_complete(go()); loop.close()",
    }
    code = f"""
import asyncio
client = palisade.{"Client" if kind == "threads" else "AsyncClient"}(scripted.url)

async def go():
    held = await client.lock(f"orders-{{time.monotonic()}}", ttl="60s").acquire()
    before = len(scripted.of("listen"))
    while len(scripted.of("listen")) == before:
        await asyncio.sleep(0.01)  # real time: asked again, until it listens
    return held

{ends[kind]}
print(json.dumps("ended"))
"""
    began = time.monotonic()
    assert run(HANGS + code, server) == "ended"
    assert time.monotonic() - began < 15


def test_a_closed_client_listens_no_more(server: Palisade) -> None:
    go_on = threading.Event()

    def hangs(_: Request) -> Scripted_reply:
        go_on.wait(60)
        return BROKEN["busy"]

    with answering(server, hangs) as scripted:

        def running() -> int:
            return sum(thread.name == "palisade: listen" for thread in threading.enumerate())

        client = Client(scripted.url)
        client.lock("orders", ttl=LONG).acquire()
        assert until(lambda: scripted.of("listen"))
        assert running() == 1
        client.close()
        assert running() == 0

        async def go() -> None:
            async with AsyncClient(scripted.url) as client:
                await client.lock("other", ttl=LONG).acquire()
                while len(scripted.of("listen")) < 2:
                    await asyncio.sleep(0.01)  # real time: asked again, until it listens
            assert len(asyncio.all_tasks()) <= 3, asyncio.all_tasks()

        asyncio.run(go())
        go_on.set()


PAGE = (ROOT / "docs" / "use" / "notices.md").read_text(encoding="utf-8")


def test_the_page_runs(server: Palisade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALISADE_URL", server.url)
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(example, "notices.md", "exec"), {})
    assert server.show("report")["holder"] is None
