//! An echo that writes and syncs before each round of answers: the cost of a machine's sockets and disk for any server
//! that answers only after a sync. It decides nothing, and it answers with a count of the messages.
//!
//! ```text
//!   epoll ─► one read for each ready connection ─► one write and sync ─► one write for each connection
//! ```

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::Deref;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use palisade_testbed::{Instance, Program};
use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create, wait};

use crate::lane::Error;

/// The bytes of a message, in either direction.
pub(crate) const MESSAGE: usize = 64;

/// The size of the log, which is written again from its beginning when it is full. It never grows, so a sync writes no
/// sizes.
const LOG: usize = 16 << 20;

/// The number of the listener; connections follow.
const LISTENER: u64 = 0;

/// A running echo; dropping it ends it.
pub(crate) struct Server(Program);

impl Server {
    pub(crate) fn start() -> Result<Server, Error> {
        let program = std::env::current_exe()?;
        let arguments = |dir: &Path, port: u16| {
            let log = dir.join("data").display().to_string();
            vec!["echo".to_owned(), port.to_string(), log]
        };
        let ready = |port| TcpStream::connect(("127.0.0.1", port)).is_ok();
        Ok(Server(Program::start("echo", &program, arguments, ready)))
    }
}

impl Deref for Server {
    type Target = Instance;
    fn deref(&self) -> &Instance {
        &self.0
    }
}

/// Serves until it is killed, in one thread.
pub(crate) fn serve(port: u16, log: &Path) -> Result<(), Error> {
    let mut log = Log::create(log)?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let epoll = create(CreateFlags::CLOEXEC)?;
    let readable = |at| (EventData::new_u64(at), EventFlags::IN);
    let (data, flags) = readable(LISTENER);
    add(&epoll, &listener, data, flags)?;
    let mut connections: Vec<Option<TcpStream>> = vec![None];
    let (mut events, mut round, mut count) = (Vec::with_capacity(1_024), Vec::new(), 0_u64);
    loop {
        events.clear();
        wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let at = event.data.u64();
            if at == LISTENER {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let (data, flags) = readable(connections.len() as u64);
                add(&epoll, &stream, data, flags)?;
                connections.push(Some(stream));
                continue;
            }
            let connection = &mut connections[usize::try_from(at)?];
            let mut message = [0; MESSAGE];
            match connection.as_mut().map(|stream| stream.read(&mut message)) {
                Some(Ok(MESSAGE)) => round.push((usize::try_from(at)?, message)),
                Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => {}
                // The client is gone.
                _ => *connection = None,
            }
        }
        if round.is_empty() {
            continue;
        }
        log.append(round.len() * MESSAGE)?;
        for (at, mut message) in round.drain(..) {
            count += 1;
            message[..8].copy_from_slice(&count.to_le_bytes());
            if let Some(stream) = &mut connections[at] {
                // A client that is gone is noticed at the next read.
                let _ = stream.write(&message);
            }
        }
    }
}

/// A file that is only written and synced.
struct Log {
    file: File,
    at: usize,
    zeros: Vec<u8>,
}

impl Log {
    fn create(path: &Path) -> Result<Log, Error> {
        let file = File::create(path)?;
        let zeros = vec![0; LOG];
        file.write_all_at(&zeros, 0)?;
        file.sync_all()?;
        Ok(Log { file, at: 0, zeros })
    }

    fn append(&mut self, bytes: usize) -> Result<(), Error> {
        if self.at + bytes > LOG {
            self.at = 0;
        }
        self.file
            .write_all_at(&self.zeros[..bytes], self.at as u64)?;
        self.file.sync_data()?;
        self.at += bytes;
        Ok(())
    }
}
