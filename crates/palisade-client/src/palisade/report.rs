//! Reports of refused late writes, as JSON over HTTP: the route that all clients use.

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use palisade_core::AuthorityId;
use palisade_tls::Connector;
use serde_json::json;

use super::address::Address;
use super::nodes::Nodes;
use super::unary;
use crate::fault::{Fault, Reason};
use crate::service::LateWrite;

/// Makes one attempt, on a connection of its own. Every node passes the report on to the leader. After a failure, the next
/// call goes to the next node.
pub(super) async fn send(
    nodes: &Nodes,
    authority: &AuthorityId,
    late: LateWrite,
) -> Result<(), Fault> {
    // Tokens of another authority would accuse this one's holders.
    if late
        .authority
        .as_ref()
        .is_some_and(|other| other != authority)
    {
        return Err(Fault::invalid("the refused token is of another authority"));
    }
    let address = nodes.for_calls();
    let sent = async {
        // Another authority may have taken over the address.
        drop(unary::open(address, nodes, authority).await?);
        post(address, nodes, &late).await
    };
    sent.await.map_err(|fault: Fault| {
        nodes.move_calls();
        fault.at(address)
    })
}

async fn post(address: &Address, nodes: &Nodes, late: &LateWrite) -> Result<(), Fault> {
    let body = json!({
        "fencing_token": late.token.get(),
        "resource": late.resource,
        "highest": late.highest.get(),
        "operation": late.operation,
    });
    let root = address.endpoint().uri().to_string();
    let lock = percent_encoded(late.lock.as_str());
    let url = format!("{}/v1/locks/{lock}/rejections", root.trim_end_matches('/'));
    let mut request = Request::post(url).header(CONTENT_TYPE, "application/json");
    if let Some(token) = nodes.token() {
        let value = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
        let mut value = value.map_err(|_| Fault::invalid("the token does not fit a header"))?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    let request = request.body(body.to_string());
    let request = request.map_err(|error| Fault::invalid(Reason::caused_by(error)))?;
    let client: Client<Connector, String> = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build(nodes.connector(address));
    let answer = client.request(request).await;
    let answer = answer.map_err(|error| Fault::unknown_outcome(Reason::caused_by(error)))?;
    match answer.status() {
        StatusCode::OK => Ok(()),
        status => Err(Fault::unavailable(format!(
            "the report was answered with {status}"
        ))),
    }
}

fn percent_encoded(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => encoded.push(byte.into()),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_segment() {
        assert_eq!(percent_encoded("a/b ~1"), "a%2Fb%20%7E1");
        assert_eq!(percent_encoded(".."), "%2E%2E");
    }
}
