//! The body of a request while it arrives: bounded in bytes and in time.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use palisade_proto::Code;
use tokio::time::Sleep;

use super::budget::Charge;
use super::{ExchangeKind, Settings};

/// Why a body was not read to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is larger than allowed.
    #[error("the body is larger than {most} bytes")]
    TooLarge {
        /// The largest allowed size.
        most: usize,
    },
    /// It took too long.
    #[error("the body did not arrive in time")]
    Late,
    /// Too many bytes are in flight at the same time, on this connection or on all.
    #[error("too many bytes are in flight at the same time; send fewer requests at once")]
    NoRoom,
    /// The connection broke, or the peer gave up.
    #[error("the body ended early")]
    Broken,
}

impl BodyError {
    /// Its code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            BodyError::TooLarge { .. } => Code::TooLarge,
            BodyError::Late => Code::RequestTimeout,
            BodyError::NoRoom => Code::Unavailable,
            BodyError::Broken => Code::Invalid,
        }
    }

    /// Finds the body error among the causes of an error.
    #[must_use]
    pub fn among(error: &(dyn std::error::Error + 'static)) -> BodyError {
        let mut next = Some(error);
        while let Some(cause) = next {
            if let Some(found) = cause.downcast_ref::<BodyError>() {
                return found.clone();
            }
            next = cause.source();
        }
        BodyError::Broken
    }
}

/// Reads a body to its end, within the shell's bounds.
///
/// # Errors
/// [`BodyError`].
pub async fn read(body: Body) -> Result<Bytes, BodyError> {
    let read = axum::body::to_bytes(body, usize::MAX).await;
    read.map_err(|error| BodyError::among(&error))
}

/// A body, or the messages of a session, with a clock that runs only while something is unfinished.
pub(super) struct Arriving<B> {
    body: B,
    exchange: ExchangeKind,
    most: usize,
    timeout: Duration,
    /// Starts when a body, or a message, is first waited for.
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes of the unfinished part so far.
    bytes: usize,
    charge: Charge,
    framing: Framing,
}

impl<B> Arriving<B> {
    pub(super) fn new(
        body: B,
        exchange: ExchangeKind,
        settings: &Settings,
        charge: Charge,
    ) -> Arriving<B> {
        Arriving {
            body,
            exchange,
            most: settings.body_bytes,
            timeout: settings.body_timeout,
            timer: None,
            bytes: 0,
            charge,
            framing: Framing::default(),
        }
    }

    /// Charges a piece.
    fn take(&mut self, piece: &[u8]) -> Result<(), BodyError> {
        let unfinished = match self.exchange {
            ExchangeKind::Proxied => return Ok(()),
            ExchangeKind::Unary | ExchangeKind::Watch => piece.len(),
            ExchangeKind::Session => {
                let unfinished = self.framing.after(piece);
                if unfinished < piece.len() {
                    // A message was completed in this piece: the bytes after it belong to a new one.
                    self.bytes = 0;
                    self.charge.release();
                    self.timer = None;
                }
                unfinished
            }
        };
        self.bytes += unfinished;
        if self.exchange != ExchangeKind::Session && self.bytes > self.most {
            return Err(BodyError::TooLarge { most: self.most });
        }
        if !self.charge.add(unfinished) {
            return Err(BodyError::NoRoom);
        }
        if let Some(timer) = &mut self.timer {
            let deadline = timer.deadline() + earned(unfinished);
            timer.as_mut().reset(deadline);
        }
        Ok(())
    }

    /// `Ready` if the unfinished part took too long.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let idle = self.exchange == ExchangeKind::Session && self.bytes == 0;
        if idle || self.exchange == ExchangeKind::Proxied {
            return Poll::Pending;
        }
        let allowed = self.timeout + earned(self.bytes);
        self.timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(allowed)))
            .as_mut()
            .poll(cx)
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Arriving<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let taken = frame.data_ref().map_or(Ok(()), |piece| this.take(piece));
                Poll::Ready(Some(taken.map(|()| frame)))
            }
            Poll::Ready(Some(Err(_))) => Poll::Ready(Some(Err(BodyError::Broken))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                ready!(this.poll_late(cx));
                Poll::Ready(Some(Err(BodyError::Late)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The position in a stream of gRPC messages: five bytes (a flag and a length), then the message.
#[derive(Debug, Default)]
struct Framing {
    header: [u8; 5],
    /// How many bytes of `header` were read.
    read: usize,
    /// How many bytes of the message are missing.
    missing: u64,
}

impl Framing {
    /// Advances by a piece; returns how many of its bytes belong to a message that is unfinished after it.
    fn after(&mut self, mut piece: &[u8]) -> usize {
        let mut unfinished = piece.len();
        while !piece.is_empty() {
            let step = if self.missing > 0 {
                let step = piece
                    .len()
                    .min(usize::try_from(self.missing).unwrap_or(usize::MAX));
                self.missing -= step as u64;
                step
            } else {
                let step = piece.len().min(self.header.len() - self.read);
                self.header[self.read..self.read + step].copy_from_slice(&piece[..step]);
                self.read += step;
                if self.read == self.header.len() {
                    let [_, length @ ..] = self.header;
                    self.missing = u32::from_be_bytes(length).into();
                }
                step
            };
            piece = &piece[step..];
            if self.read == self.header.len() && self.missing == 0 {
                self.read = 0;
                unfinished = piece.len();
            }
        }
        unfinished
    }
}

/// The extra time that a body earns with its bytes.
fn earned(bytes: usize) -> Duration {
    Duration::from_micros((bytes as u64).saturating_mul(1_000_000) / BYTES_PER_SECOND)
}

/// A body that is slower than this does not arrive in time.
const BYTES_PER_SECOND: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt as _;
    use http_body_util::channel::Channel;

    use super::super::budget::ByteBudget;
    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    fn arriving<B>(body: B, exchange: ExchangeKind, budget: &Arc<ByteBudget>) -> Arriving<B> {
        let settings = Settings {
            body_bytes: 1_024,
            body_timeout: SOON,
            ..Settings::default()
        };
        Arriving::new(body, exchange, &settings, budget.charge())
    }

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
        bytes.resize(5 + length, 7);
        bytes
    }

    #[test]
    fn messages_are_found_at_every_cut() {
        let stream = [message(3), message(0), message(300)].concat();
        for step in 1..stream.len() {
            let mut framing = Framing::default();
            let mut unfinished = 0;
            for piece in stream.chunks(step) {
                let after = framing.after(piece);
                unfinished = if after < piece.len() {
                    after
                } else {
                    unfinished + after
                };
            }
            assert_eq!((unfinished, framing.read, framing.missing), (0, 0, 0));
        }
        let mut framing = Framing::default();
        assert_eq!(framing.after(&stream[..6]), 6);
        assert_eq!(framing.after(&stream[6..10]), 2);
        assert_eq!(framing.after(&stream[10..]), 0);
    }

    #[tokio::test]
    async fn a_slow_body_is_late_and_a_steady_one_is_not() {
        let budget = ByteBudget::new(1 << 20, None);
        let (mut sender, body) = Channel::<Bytes>::new(1);
        let dripping = arriving(body, ExchangeKind::Unary, &budget).collect();
        let drips = async {
            let pause = SOON / 10;
            while sender.send_data(Bytes::from_static(b"x")).await.is_ok() {
                tokio::time::sleep(pause).await; // real time: the body has to be slow
            }
        };
        let (ended, ()) = tokio::join!(dripping, drips);
        assert_eq!(ended.unwrap_err(), BodyError::Late);

        let whole = http_body_util::Full::new(Bytes::from(vec![7; 1_024]));
        let whole = arriving(whole, ExchangeKind::Unary, &budget);
        assert_eq!(whole.collect().await.unwrap().to_bytes().len(), 1_024);
    }

    #[tokio::test]
    async fn a_session_may_pause_between_messages_but_not_within_one() {
        let budget = ByteBudget::new(1 << 20, None);
        let session = || {
            let (sender, body) = Channel::<Bytes>::new(8);
            (sender, arriving(body, ExchangeKind::Session, &budget))
        };
        let (mut between, mut pausing) = session();
        let (mut within, mut stuck) = session();
        between.send_data(message(9_000).into()).await.unwrap();
        pausing.frame().await.unwrap().unwrap();
        within.send_data(message(9_000).into()).await.unwrap();
        within.send_data(Bytes::from_static(&[0])).await.unwrap();
        stuck.frame().await.unwrap().unwrap();
        stuck.frame().await.unwrap().unwrap();
        // The session inside a message is late; the other one, which began to wait earlier, is not.
        tokio::select! {
            biased;
            ended = pausing.frame() => panic!("{ended:?}"),
            ended = stuck.frame() => {
                assert_eq!(ended.unwrap().unwrap_err(), BodyError::Late);
            }
        }
    }

    #[tokio::test]
    async fn bytes_are_bounded_for_one_body_and_for_all() {
        let budget = ByteBudget::new(1_500, None);
        let full = |bytes: usize| http_body_util::Full::new(Bytes::from(vec![7; bytes]));
        let mut first = arriving(full(1_000), ExchangeKind::Unary, &budget);
        first.frame().await.unwrap().unwrap();
        let second = arriving(full(1_000), ExchangeKind::Unary, &budget).collect();
        assert_eq!(second.await.unwrap_err(), BodyError::NoRoom);
        drop(first);
        let third = arriving(full(1_000), ExchangeKind::Unary, &budget).collect();
        third.await.unwrap();
        let large = arriving(full(1_025), ExchangeKind::Unary, &budget).collect();
        assert_eq!(
            large.await.unwrap_err(),
            BodyError::TooLarge { most: 1_024 }
        );
        // An unfinished message is charged, a complete one is not.
        let mut session = arriving(
            http_body_util::Full::new(Bytes::from(message(9_000))),
            ExchangeKind::Session,
            &budget,
        );
        session.frame().await.unwrap().unwrap();
        let torn = Bytes::from(message(9_000)).slice(..2_000);
        let torn = arriving(
            http_body_util::Full::new(torn),
            ExchangeKind::Session,
            &budget,
        );
        assert_eq!(torn.collect().await.unwrap_err(), BodyError::NoRoom);
    }
}
