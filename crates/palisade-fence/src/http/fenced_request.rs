//! Parses the parts of a request that the fence judges.

use axum_core::body::Body;
use http::request::Parts;
use palisade_core::Token;

use crate::http::headers::Presented;
use crate::http::route::is_safe;
use crate::http::{Problem, Resources, overrides, spelling};
use crate::name::ResourceId;
use crate::sequencer::Check;

/// A request that the fence has to judge.
#[derive(Debug)]
pub(super) struct FencedRequest {
    pub(super) resource: ResourceId,
    pub(super) presented: Presented,
    pub(super) kind: RequestKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// Raise the fence and answer.
    Claim,
    /// Raise the fence, then pass the read on.
    Read,
    /// Raise the fence, then pass the write on and watch for its end.
    Write,
}

impl FencedRequest {
    /// Parses a request; `None` if the fence has nothing to judge, so that it passes.
    pub(super) fn parse(
        head: &Parts,
        body: &Body,
        resources: &impl Resources,
        check: &Check,
    ) -> Result<Option<FencedRequest>, Problem> {
        overrides::refuse(head, body)?;
        let mut presented = Presented::read(&head.headers)?;
        let Some(target) = resources.target(head)? else {
            return if presented.has_token() {
                Err(Problem::invalid(format!(
                    "nothing is fenced at {}: the fencing token would not be checked",
                    head.uri.path()
                )))
            } else {
                Ok(None)
            };
        };
        let kind = if presented.claim {
            RequestKind::Claim
        } else if target.writes.unwrap_or(!is_safe(&head.method)) {
            RequestKind::Write
        } else if presented.has_token() {
            RequestKind::Read
        } else {
            return Ok(None);
        };
        // A user's own `Resources` may have looked at only a part of the path.
        spelling::segments(head.uri.path())?;
        if kind != RequestKind::Write && presented.sequence.is_some() {
            return Err(Problem::invalid(
                "x-fencing-sequence is for writes, and this request is not a write",
            ));
        }
        presented.settle(check, target.resource.as_str(), kind == RequestKind::Write)?;
        Ok(Some(FencedRequest {
            resource: target.resource,
            presented,
            kind,
        }))
    }

    pub(super) fn token(&self) -> Option<Token> {
        self.presented.token
    }
}
