//! The authority that a store or a gateway tells of late writes.

use clap::{Args, ValueHint};
use palisade_client::{Client, Options};

use super::args::Certificates;
use super::failure::Failure;
use crate::reporting;

/// `--report-to` and what it shows there.
#[derive(Args, Clone, Debug)]
pub(super) struct ReportArgs {
    /// Tell this lock server of the late writes that are refused here, for its history: http://host:port, https://host:port,
    /// unix:///path, or the nodes of a cluster with commas between them. In the background; no answer waits for it.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    report_to: Option<String>,
    #[command(flatten)]
    certificates: Certificates,
}

impl ReportArgs {
    /// Connects, if there is an authority to be told. One that is away is connected later.
    pub(super) async fn reporter(&self) -> Result<Option<Client>, Failure> {
        let Some(url) = self.report_to.clone() else {
            return Ok(None);
        };
        let refused = |fault| Failure::usage(format!("--report-to: {fault:#}"));
        let options = Options {
            tls: self.certificates.tls(),
            token: self.certificates.token().map_err(refused)?,
            ..Options::default()
        };
        let reporter = reporting::reporter(url, options).await;
        reporter.map(Some).map_err(refused)
    }
}
