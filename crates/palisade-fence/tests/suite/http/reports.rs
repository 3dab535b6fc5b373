//! The layer reports late writes.

use std::sync::Arc;

use palisade_fence::Rule;
use palisade_fence::http::{FenceLayer, Policy};
use tower_layer::Layer as _;

use super::support::{Map, Slow, by_segment, call, marks, request, send};
use crate::heard::Heard;

#[tokio::test]
async fn a_late_write_is_reported_with_its_method_and_its_path() {
    let heard = Arc::new(Heard::default());
    let layer = FenceLayer::new(marks(Rule::CLAIM), by_segment as Map, Policy::default()).unwrap();
    let later = layer.clone();
    // A clone from before reports, too.
    let _ = layer.reporting_to(heard.clone());
    let service = later.layer(Slow::quick());
    assert_eq!(send(&service, "PUT", "/r", 2).await.status, 200);
    for (method, path) in [("PUT", "/r/total?secret=1"), ("GET", "/r")] {
        let headers = [("x-fencing-token", "1"), ("x-fencing-lock", "nightly")];
        let answer = call(&service, request(method, path, &headers)).await;
        assert_eq!(answer.status, 412);
    }
    let claim = [("x-fencing-token", "1"), ("x-fencing-operation", "claim")];
    assert_eq!(
        call(&service, request("POST", "/r", &claim)).await.status,
        412
    );
    // The controls: refused for another reason, and not at all.
    assert_eq!(call(&service, request("PUT", "/r", &[])).await.status, 428);
    assert_eq!(send(&service, "PUT", "/r", 2).await.status, 200);
    assert_eq!(
        heard.take(),
        [
            "nightly: PUT /r/total at r, 1 < 2",
            "nightly: GET /r at r, 1 < 2",
            "-: claim at r, 1 < 2",
        ]
    );
}
