//! A network that can be frozen: bytes in flight stay there, and nothing is closed.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// Passes bytes on to a server, while it is not frozen.
pub(crate) struct Proxy {
    pub(crate) url: String,
    gate: Arc<Gate>,
}

/// Shut while the network is frozen.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let shut = self.shut.lock().unwrap();
        drop(self.opened.wait_while(shut, |shut| *shut).unwrap());
    }

    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.opened.notify_all();
    }
}

impl Proxy {
    pub(crate) fn to(url: &str) -> Proxy {
        let server = url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gate = Arc::<Gate>::default();
        let at = Arc::clone(&gate);
        // The threads end with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                at.pass();
                // Without a server the client's connection is closed.
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) else {
                    continue;
                };
                pump(
                    client.try_clone().unwrap(),
                    server.try_clone().unwrap(),
                    Arc::clone(&at),
                );
                pump(server, client, Arc::clone(&at));
            }
        });
        Proxy { url, gate }
    }

    /// From now on nothing gets through in either direction, and both ends stay open and silent.
    pub(crate) fn freeze(&self) {
        self.gate.set(true);
    }

    /// The network works again, and brings what was under way.
    pub(crate) fn thaw(&self) {
        self.gate.set(false);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, gate: Arc<Gate>) {
    std::thread::spawn(move || {
        let mut bytes = [0; 16 * 1024];
        loop {
            let read = from.read(&mut bytes).unwrap_or(0);
            gate.pass();
            if read == 0 || to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
