//! The echo: one message for an acquire and one for a release.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::Connection as Any;
use crate::echo::MESSAGE;
use crate::lane::{self, Error, LaneFuture, Renewing};

/// It has one lane, which takes the stream.
pub(crate) struct Connection(Mutex<Option<TcpStream>>);

struct Lane(TcpStream);

impl Connection {
    pub(crate) async fn open(port: u16) -> Result<Connection, Error> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Connection(Mutex::new(Some(stream))))
    }
}

impl Any for Connection {
    fn lane<'a>(&'a self, _lock: &'a str) -> LaneFuture<'a, Box<dyn Renewing>> {
        Box::pin(async move {
            let stream = self.0.lock().await.take();
            let stream = stream.ok_or("the echo has one lane for each connection")?;
            Ok(Box::new(Lane(stream)) as Box<dyn Renewing>)
        })
    }
}

impl Lane {
    async fn ask(&mut self) -> Result<u64, Error> {
        let mut message = [0; MESSAGE];
        self.0.write_all(&message).await?;
        self.0.read_exact(&mut message).await?;
        let (count, _) = message.split_first_chunk().ok_or("a short answer")?;
        Ok(u64::from_le_bytes(*count))
    }
}

impl lane::Lane for Lane {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(self.ask())
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async { self.ask().await.map(drop) })
    }
}

impl Renewing for Lane {
    fn renew(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async { Err("the echo has no leases".into()) })
    }
}
