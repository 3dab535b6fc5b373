//! The address of a collector.

use std::fmt;
use std::str::FromStr;

use axum::http::Uri;
use axum::http::uri::Scheme;

/// Where a collector takes traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint(Uri);

impl Endpoint {
    /// The URL that traces are posted to.
    pub(super) fn traces(&self) -> &Uri {
        &self.0
    }

    /// Whether connections need certificates.
    pub(super) fn is_secure(&self) -> bool {
        self.0.scheme() == Some(&Scheme::HTTPS)
    }
}

impl FromStr for Endpoint {
    type Err = String;

    /// Reads a collector's URL, to which `/v1/traces` is added.
    fn from_str(text: &str) -> Result<Endpoint, String> {
        let form =
            || "write http://HOST:PORT or https://HOST:PORT, usually with port 4318".to_owned();
        let url: Uri = text.parse().map_err(|_| form())?;
        let is_http = matches!(url.scheme_str(), Some("http" | "https"));
        if !is_http || url.host().is_none_or(str::is_empty) || url.query().is_some() {
            return Err(form());
        }
        if url
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
        {
            return Err("the URL must not contain a user or a password".to_owned());
        }
        let base = text.trim_end_matches('/');
        if base.ends_with(PATH) {
            return Err(format!("leave {PATH} out: it is added to the URL"));
        }
        let traces = format!("{base}{PATH}").parse();
        traces.map(Endpoint).map_err(|_| form())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

const PATH: &str = "/v1/traces";
