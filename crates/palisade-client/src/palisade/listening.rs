//! Listening over the first connection of a client.
//!
//! Notices come on that connection by themselves. When it ends, so does the listening, and the client begins anew: the next
//! connection does not know the grants.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use palisade_core::Token;
use palisade_proto::v1 as pb;
use tokio::sync::mpsc;

use super::link::Link;
use super::request::Request;
use super::wire;
use crate::fault::Fault;
use crate::service::{GrantNews, Listened, Listening};

/// Where a connection sends its notices, and the refusal to send any.
pub(super) type NoticeSender = mpsc::UnboundedSender<Result<pb::Notice, Fault>>;

pub(super) struct SessionListening {
    link: Arc<Link>,
    /// Until the first grants are named: they take it to the connection that carries them.
    ear: Option<NoticeSender>,
    notices: mpsc::UnboundedReceiver<Result<pb::Notice, Fault>>,
}

impl SessionListening {
    pub(super) fn new(link: Arc<Link>) -> SessionListening {
        let (ear, notices) = mpsc::unbounded_channel();
        SessionListening {
            link,
            ear: Some(ear),
            notices,
        }
    }
}

impl Listening for SessionListening {
    fn name(&mut self, grants: Vec<Listened>) {
        for some in grants.chunks(palisade_proto::json::LISTEN_GRANTS) {
            let grants = some.iter().map(|listened| pb::ListenedGrant {
                lock: listened.grant.lock.to_string(),
                lock_token: wire::bytes(listened.grant.key.as_bytes()),
                fencing_token: listened.grant.token.map_or(0, Token::get),
                waiters: listened.waiters,
            });
            let grants = grants.collect();
            let request = Request::Listen(pb::ListenRequest { grants }, self.ear.take());
            // The answer says nothing; a refusal comes as a notice.
            drop(self.link.call(request));
        }
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<GrantNews, Fault>>> {
        loop {
            let Some(notice) = ready!(self.notices.poll_recv(cx)) else {
                return Poll::Ready(None);
            };
            return Poll::Ready(Some(match notice.and_then(wire::notice) {
                // News of a later server.
                Ok(None) => continue,
                Ok(Some(news)) => Ok(news),
                Err(fault) => Err(fault),
            }));
        }
    }
}
