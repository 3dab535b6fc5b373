//! Issues sequencers to callers that present the key of the lease that holds the lock.

use std::sync::Arc;

use palisade_core::{LockName, Outcome, Token};
use palisade_pipeline::{Answer, Request};
use palisade_proto::Code;

use super::calls::Calls;
use super::convert::{Refusal, refusal};
use super::gate::Who;
use super::sequencer::{HeldAs, Signer};

/// Signs callers' grants.
pub(super) struct SequencerIssuer {
    calls: Arc<Calls>,
    /// `None` for a server without a file of keys.
    signer: Option<Signer>,
}

impl SequencerIssuer {
    pub(super) fn new(calls: Arc<Calls>, signer: Option<Signer>) -> SequencerIssuer {
        SequencerIssuer { calls, signer }
    }

    /// The signer of a server that has keys.
    pub(super) fn signer(&self) -> Result<&Signer, Refusal> {
        self.signer.as_ref().ok_or_else(|| {
        let why = "this server signs no sequencers, because it has no keys: a node of a cluster makes them of the cluster's key; start all nodes with --cluster-key-file";
        Refusal::new(Code::Refused, why)
    })
    }

    /// Signs a caller's grant, and returns the signed token. `renew` shows the key of its lease.
    pub(super) async fn issue(
        &self,
        who: &Who,
        lock: &LockName,
        renew: Request,
    ) -> Result<(Token, String), Refusal> {
        let renew = self.calls.gate.permit(who, renew)?;
        let signer = self.signer()?;
        let principal = renew.principal().map(str::to_owned);
        let renewed = match self.calls.ask(renew).await {
            Answer::Outcome(Outcome::Renewed(renewed)) => renewed,
            other => return Err(refusal(other)),
        };
        let look = self.calls.gate.look_as_holder(who, lock.clone(), &renewed);
        let held = match self.calls.ask(look).await {
            Answer::Lock(view) => HeldAs::find(&view, renewed.token),
            other => return Err(refusal(other)),
        };
        let ended = || Refusal::new(Code::NotHeld, "the grant ended at this moment");
        let held = held.ok_or_else(ended)?;
        let signed = signer.sign(lock, renewed.token, &held, principal.as_deref());
        Ok((renewed.token, signed))
    }
}
