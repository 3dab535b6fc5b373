//! How a new node comes into a cluster that is there.

use std::time::Duration;

use palisade_proto::json::AddMemberBody;
use palisade_replica::{Engine, NodeId, Tokio};
use palisade_wal::Id;
use tokio::time::sleep;

use crate::cluster::{Error, Nodes};

/// How often a cluster that does not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// A cluster that was found.
pub(super) struct Found {
    pub(super) authority: Id,
    pub(super) incarnation: Id,
}

/// Looks for the cluster at these URLs until one of them answers.
///
/// # Errors
/// If what answers is no cluster.
pub(super) async fn find(urls: &[String]) -> Result<Found, String> {
    let nodes = Nodes::new(urls.to_vec());
    let mut said = String::new();
    loop {
        match nodes.view().await {
            Ok(view) => {
                let id = |text: &str| text.parse::<Id>().map_err(|why| format!("{text}: {why}"));
                return Ok(Found {
                    authority: id(&view.authority)?,
                    incarnation: id(&view.incarnation)?,
                });
            }
            Err(Error::Refused { message, .. }) => return Err(message),
            Err(Error::Unreachable(why)) if why != said => {
                tracing::info!("waiting for the cluster: {why}");
                said = why;
            }
            Err(Error::Unreachable(_)) => {}
        }
        sleep(AGAIN).await;
    }
}

/// Asks to be added, until this node is a voter.
pub(super) async fn ask(
    urls: Vec<String>,
    body: AddMemberBody,
    engine: Engine<Tokio>,
    node: NodeId,
) {
    let nodes = Nodes::new(urls);
    let mut said = String::new();
    loop {
        if engine.progress().members.voters.iter().any(|voters| voters.contains(&node)) {
            tracing::info!("this node is a voting member");
            return;
        }
        if let Err(error) = nodes.change("/v1/cluster/add", &body).await {
            let why = error.to_string();
            if why != said {
                tracing::warn!("not added to the cluster yet: {why}");
                said = why;
            }
        }
        sleep(AGAIN).await;
    }
}
