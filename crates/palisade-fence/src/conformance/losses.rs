//! The behaviour of a fence after a crash of its resource, or after a restore without the fence.

use crate::conformance::steps::{Failure, Probe, admitted, reads, stale};
use crate::conformance::{Report, Subject};

/// Runs the checks that the subject supports; the others are reported by name as left out.
pub(super) async fn run<S: Subject>(s: &S, report: &mut Report) {
    let name = "acknowledged_writes_survive_a_crash";
    report.note_if_possible(name, acknowledged_writes_survive_a_crash(s).await);
    let name = "data_without_its_fence_is_refused";
    report.note_if_possible(name, data_without_its_fence_is_refused(s).await);
}

/// Rules F1 and F4: the mark of a claim is as durable as the data.
async fn acknowledged_writes_survive_a_crash<S: Subject>(s: &S) -> Result<bool, Failure> {
    let r = Probe::fresh(s, "crash").await?;
    admitted(r.put(5, "five").await?)?;
    admitted(r.claim(7).await?)?;
    if !s.crash().await? {
        return Ok(false);
    }
    stale(r.put(6, "late").await?, 6, 7)?;
    reads(r.read(7).await?, Some("five"))?;
    admitted(r.put(8, "eight").await?)?;
    r.holds(Some("eight")).await?;
    Ok(true)
}

/// Rule F7: every operation, with any token, is refused until the fence is re-armed.
async fn data_without_its_fence_is_refused<S: Subject>(s: &S) -> Result<bool, Failure> {
    let r = Probe::fresh(s, "lost").await?;
    admitted(r.put(5, "five").await?)?;
    if !s.lose_fence("lost").await? {
        return Ok(false);
    }
    for token in [4, 6] {
        if r.put(token, "late")
            .await
            .is_ok_and(|answer| answer.is_ok())
        {
            return Err(format!("token {token} was admitted without a fence"));
        }
        if r.claim(token).await.is_ok_and(|answer| answer.is_ok()) {
            return Err(format!(
                "a claim of token {token} was admitted without a fence"
            ));
        }
    }
    r.holds(Some("five")).await?;
    Ok(true)
}
