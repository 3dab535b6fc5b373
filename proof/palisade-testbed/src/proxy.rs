//! A TCP relay between a client and a server that can cut, delay and hold back connections.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The direction in which bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Forth,
    /// From the server to the client.
    Back,
}

/// A relay on 127.0.0.1. It stops when its value is dropped, and its connections end with it.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: Mutex<SocketAddr>,
    open: AtomicBool,
    accepted: AtomicU64,
    /// Every connection that is still relayed.
    connections: Mutex<Vec<Weak<Connection>>>,
    gates: [Gate; 2],
    ended: AtomicBool,
}

/// Both ends of a connection; they close with the last of the two threads that relay between them.
struct Connection {
    near: TcpStream,
    far: TcpStream,
}

impl Connection {
    fn cut(&self) {
        let _ = self.near.shutdown(Shutdown::Both);
        let _ = self.far.shutdown(Shutdown::Both);
    }
}

/// Delays and holds back the data in one direction.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct GateState {
    delay: Duration,
    held: bool,
}

impl Proxy {
    /// Starts a relay to a server.
    pub fn to(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on 127.0.0.1");
        let address = listener.local_addr().expect("its number");
        let shared = Arc::new(Shared {
            server: Mutex::new(server),
            open: AtomicBool::new(true),
            accepted: AtomicU64::new(0),
            connections: Mutex::default(),
            gates: [Gate::default(), Gate::default()],
            ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &accepting));
        Proxy { address, shared }
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The number of connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Breaks every connection, and each new one immediately, until [`Proxy::heal`].
    pub fn cut(&self) {
        self.shared.open.store(false, Ordering::SeqCst);
        self.break_connections();
    }

    /// Breaks every connection once.
    pub fn break_connections(&self) {
        for connection in lock(&self.shared.connections).drain(..) {
            if let Some(connection) = connection.upgrade() {
                connection.cut();
            }
        }
    }

    /// Lets new connections through again.
    pub fn heal(&self) {
        self.shared.open.store(true, Ordering::SeqCst);
    }

    /// Sends new connections to another server.
    pub fn move_to(&self, server: SocketAddr) {
        *lock(&self.shared.server) = server;
    }

    /// Delays each piece of data in this direction.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.gate(direction, |state| state.delay = delay);
    }

    /// Holds back all data in this direction until [`Proxy::let_go`]: nothing is lost, and nothing arrives.
    pub fn hold(&self, direction: Direction) {
        self.gate(direction, |state| state.held = true);
    }

    /// Lets the data that was held back through.
    pub fn let_go(&self, direction: Direction) {
        self.gate(direction, |state| state.held = false);
    }

    fn gate(&self, direction: Direction, change: impl FnOnce(&mut GateState)) {
        let gate = &self.shared.gates[direction as usize];
        change(&mut lock(&gate.state));
        gate.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.cut();
        self.let_go(Direction::Forth);
        self.let_go(Direction::Back);
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for near in listener.incoming().flatten() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let _ = relay(near, shared);
    }
}

fn relay(near: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let server = *lock(&shared.server);
    if !shared.open.load(Ordering::SeqCst) {
        return Ok(());
    }
    let far = TcpStream::connect(server)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let connection = Arc::new(Connection { near, far });
    {
        let mut connections = lock(&shared.connections);
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(&connection));
    }
    // A cut that happened meanwhile may not have seen this connection.
    if !shared.open.load(Ordering::SeqCst) {
        connection.cut();
    }
    for direction in [Direction::Forth, Direction::Back] {
        let (shared, connection) = (Arc::clone(shared), Arc::clone(&connection));
        std::thread::spawn(move || {
            let Connection { near, far } = &*connection;
            let (from, to) = match direction {
                Direction::Forth => (near, far),
                Direction::Back => (far, near),
            };
            let _ = pump(from, to, &shared.gates[direction as usize]);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}

fn pump(mut from: &TcpStream, mut to: &TcpStream, gate: &Gate) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        let delay = lock(&gate.state).delay;
        if !delay.is_zero() {
            std::thread::sleep(delay); // real time: the requested delay
        }
        let mut state = lock(&gate.state);
        while state.held {
            state = gate
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        to.write_all(&buffer[..length])?;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_closed_connection_keeps_no_socket_open() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let relay = Proxy::to(server.local_addr().expect("its address"));
        let mut client = TcpStream::connect(relay.addr()).expect("the relay");
        let (mut served, _) = server.accept().expect("the relay's own");
        client.write_all(b"a").expect("a byte goes");
        served.read_exact(&mut [0]).expect("a byte comes");
        let kept = |count| lock(&relay.shared.connections)[0].strong_count() == count;
        assert!(!kept(0), "two threads relay");
        drop((client, served));
        let patience = Instant::now() + Duration::from_secs(30);
        while !kept(0) {
            assert!(Instant::now() < patience, "its sockets are still open");
            std::thread::yield_now();
        }
    }
}
