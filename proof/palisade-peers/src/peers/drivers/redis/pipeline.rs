//! A connection with any number of commands in flight.
//!
//! ```text
//!   callers ─► queue ─► everything queued, one write ─► Redis ─► one read, many replies ─► callers, in order
//! ```
//!
//! Written for this purpose, because a pipelining library spends more on a command than Redis does, and the load shares
//! the cores with the server. It resembles palisade-client's own connection. A caller that is alone on its connection
//! writes and reads by itself: no task, no wake-up.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};

use super::Halves;
use super::resp::{self, Value};
use crate::lane::Error;

pub(super) enum Pipeline {
    Alone(tokio::sync::Mutex<(Halves, BytesMut)>),
    Shared(mpsc::UnboundedSender<PendingCommand>),
}

type PendingCommand = (Vec<u8>, oneshot::Sender<Value>);
type Open = Arc<Mutex<VecDeque<oneshot::Sender<Value>>>>;

impl Pipeline {
    pub(super) fn new(stream: Halves, alone: bool) -> Pipeline {
        if alone {
            return Pipeline::Alone(tokio::sync::Mutex::new((stream, BytesMut::new())));
        }
        let (asking, asked) = mpsc::unbounded_channel();
        let Halves { reading, writing } = stream;
        let open = Open::default();
        // Both tasks end with the connection, which ends when no caller is left.
        tokio::spawn(write(asked, writing, Arc::clone(&open)));
        tokio::spawn(read(reading, open));
        Pipeline::Shared(asking)
    }

    pub(super) async fn ask(&self, words: &[&[u8]]) -> Result<Value, Error> {
        let mut command = Vec::with_capacity(192);
        resp::put(&mut command, words);
        let value = match self {
            Pipeline::Alone(own) => {
                let (stream, inbound) = &mut *own.lock().await;
                stream.writing.write_all(&command).await?;
                next(&mut stream.reading, inbound).await?
            }
            Pipeline::Shared(asking) => {
                let (reply, answer) = oneshot::channel();
                asking.send((command, reply))?;
                answer.await?
            }
        };
        match value {
            Value::Error(why) => Err(why.into()),
            value => Ok(value),
        }
    }
}

/// The next reply.
pub(super) async fn next(
    stream: &mut (impl AsyncRead + Unpin),
    inbound: &mut BytesMut,
) -> Result<Value, Error> {
    loop {
        if let Some((value, length)) = resp::first(inbound)? {
            inbound.advance(length);
            return Ok(value);
        }
        inbound.reserve(READ_BYTES);
        if stream.read_buf(inbound).await? == 0 {
            return Err("Redis ended the connection".into());
        }
    }
}

async fn write(
    mut asked: mpsc::UnboundedReceiver<PendingCommand>,
    mut stream: impl AsyncWrite + Unpin,
    open: Open,
) -> Option<()> {
    let (mut taken, mut outbound) = (Vec::new(), Vec::new());
    while asked.recv_many(&mut taken, BURST).await > 0 {
        {
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            for (command, reply) in taken.drain(..) {
                outbound.extend_from_slice(&command);
                open.push_back(reply);
            }
        }
        stream.write_all(&outbound).await.ok()?;
        outbound.clear();
    }
    None
}

async fn read(mut stream: impl AsyncRead + Unpin, open: Open) -> Option<()> {
    let mut inbound = BytesMut::new();
    loop {
        let value = next(&mut stream, &mut inbound).await.ok();
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(value) = value else {
            // Dropping these tells the callers that no reply will come.
            open.clear();
            return None;
        };
        let _ = open.pop_front()?.send(value);
    }
}

/// The most commands in one write.
const BURST: usize = 1_024;

/// The buffer space for each read, in bytes.
const READ_BYTES: usize = 16 << 10;
