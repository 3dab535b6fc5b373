//! A network that can be frozen: bytes in flight stay there, and nothing is closed.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Passes bytes on to a server, until it is frozen.
pub(crate) struct Proxy {
    pub(crate) url: String,
    frozen: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn to(url: &str) -> Proxy {
        let server = url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let frozen = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&frozen);
        // The threads end with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
                pump(
                    client.try_clone().unwrap(),
                    server.try_clone().unwrap(),
                    Arc::clone(&flag),
                );
                pump(server, client, Arc::clone(&flag));
            }
        });
        Proxy { url, frozen }
    }

    /// From now on nothing gets through in either direction.
    pub(crate) fn freeze(&self) {
        self.frozen.store(true, Ordering::SeqCst);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, frozen: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut bytes = [0; 16 * 1024];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            if frozen.load(Ordering::SeqCst) {
                // Both ends stay open and silent.
                loop {
                    std::thread::park();
                }
            }
            if to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
