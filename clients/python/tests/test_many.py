"""Many leases without a thread for each."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from served import Served
from suite.clock import until
from suite.servers import Palisade
from test_fork import run

from palisade import LeaseLost, _renewals
from palisade._process import PerProcess
from palisade.testing import MemoryServer

LEASES = 200
#: The few that renew, those that wait for what is due, and the program's own.
FEW_THREADS = 24


@pytest.fixture(autouse=True)
def own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of its own."""
    monkeypatch.setattr(_renewals, "_SCHEDULES", PerProcess(_renewals._Schedule))


def test_two_hundred_leases_are_renewed_by_a_few_threads(served: Served) -> None:
    before = threading.active_count()
    with served.client(notices=False) as client:
        # Their renewals bear two seconds of a machine that is late; what waits longer gets a thread beyond the few.
        grants = [client.lock(f"lock-{number}", ttl="30s").acquire() for number in range(LEASES)]
        began = [grant._hold.deadline for grant in grants]
        most = 0

        def renewed() -> bool:
            nonlocal most
            most = max(most, threading.active_count() - before)
            return all(grant._hold.deadline > first for grant, first in zip(grants, began, strict=True))

        # Each of them, so that no thread was saved by a lease that nobody renews.
        assert until(renewed, timeout_s=60)
        for grant in grants:
            grant.check()
            grant.release()
        assert most <= FEW_THREADS


@pytest.mark.parametrize("gets_threads", [True, False], ids=["late", "control"])
def test_renewals_that_hang_cost_no_other_lease(monkeypatch: pytest.MonkeyPatch, gets_threads: bool) -> None:
    """The control: if the few threads were all, this lease would wait for those that hang, and be lost."""
    if not gets_threads:
        never = property(lambda _: 1 << 62, lambda *_: None)
        monkeypatch.setattr(_renewals._Schedule, "_next_extra_ns", never, raising=False)
    silent, answers = MemoryServer(), MemoryServer()
    with silent.client() as hanging, answers.client() as client:
        hang = [hanging.lock(f"lock-{number}", ttl="3s").acquire() for number in range(3 * _renewals.FEW)]
        grant = client.lock("orders", ttl="1500ms").acquire()
        silent.stall()
        for each in hang:
            assert each.lost.wait(30)
        if gets_threads:
            grant.check()
        else:
            with pytest.raises(LeaseLost):
                grant.check()
        silent.up()


def test_a_lease_that_was_released_is_not_kept_until_it_would_be_renewed() -> None:
    with MemoryServer().client() as client:
        grant = client.lock("orders", ttl="1h").acquire()
        kept = weakref.ref(grant)
        grant.release()
        del grant

        def is_gone() -> bool:
            gc.collect()
            return kept() is None

        # A tenth of a second after its grant it is no longer new to the listening either.
        assert until(is_gone)


def test_released_leases_leave_the_schedule() -> None:
    with MemoryServer().client() as client:
        kept = client.lock("kept", ttl="1h").acquire()
        for _ in range(_renewals._SWEEP + 10):
            client.lock("orders", ttl="1h").acquire().release()
        schedule = _renewals._SCHEDULES.here()
        assert len(schedule._waiting) < 20
        assert any(each[2] is kept._renewed for each in schedule._waiting)


@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.PyDLL(None).fork()"], ids=["python", "uwsgi"])
def test_a_child_renews_its_own_leases(server: Palisade, fork: str) -> None:
    """Its parent's threads renew at that moment, and it has their locks as they were then."""
    code = f"""
# A fork of C while another thread waits for the interpreter's lock may leave a child without it: not more threads.
client = palisade.Client(url, notices=False)
mine = client.lock("parent", ttl="900ms").acquire()
read, write = os.pipe()
pids = []
for number in range(5):
    pid = {fork}
    if pid == 0:
        grants = [client.lock(f"child-{{number}}-{{each}}", ttl="900ms").acquire() for each in range(3)]
        began = [grant._hold.deadline for grant in grants]
        while not all(grant._hold.deadline > first for grant, first in zip(grants, began)):
            time.sleep(0.01)  # real time: asked again, up to a deadline
        client.break_lock(grants[0].lock, grants[0].token)
        lost = grants[0].lost.wait(30)
        os.write(write, b"+" if lost and grants[1].held and not mine.held else b"-")
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
os.close(write)
print(json.dumps([os.read(read, 100).decode(), mine.held]))
"""
    assert run(code, server) == ["+++++", True]


@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.PyDLL(None).fork()"], ids=["python", "uwsgi"])
def test_a_child_is_told_of_a_loss_at_the_deadline(server: Palisade, fork: str) -> None:
    """Also if a renewal hangs: by an alarm alone."""
    code = f"""
import threading
from palisade import _alarms
from palisade._clock import SECOND, now_ns
from palisade._hold import Hold
client = palisade.Client(url, notices=False)  # as above
mine = client.lock("parent", ttl="60s").acquire()  # its deadline is awaited by a thread of the parent
pid = {fork}
if pid == 0:
    lost = threading.Event()
    hold = Hold(now_ns() + SECOND // 10, lost.set)
    _alarms.watch(hold)
    os._exit(0 if lost.wait(10) else 1)
print(json.dumps(os.waitpid(pid, 0)[1]))
"""
    assert run(code, server) == 0
