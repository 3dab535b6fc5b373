//! Findings: what was looked at, how it is, and the next thing to type.

use serde::Serialize;
use serde_json::Value;

use super::super::failure::{FAILED, Failure};
use super::super::output::Out;

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// It could not be looked at.
    Unknown,
    /// It will become a problem.
    Warning,
    Problem,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Unknown => "unknown",
            Severity::Warning => "warning",
            Severity::Problem => "problem",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) state: Severity,
    /// The subject, in one word.
    pub(super) about: &'static str,
    /// The address, the file or the directory.
    pub(super) at: String,
    pub(super) what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
    /// The figures, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Value>,
}

impl Finding {
    fn new(state: Severity, about: &'static str, at: &str, what: impl Into<String>) -> Finding {
        Finding {
            state,
            about,
            at: at.to_owned(),
            what: what.into(),
            next: None,
            data: None,
        }
    }

    pub(super) fn ok(about: &'static str, at: &str, what: impl Into<String>) -> Finding {
        Finding::new(Severity::Ok, about, at, what)
    }

    pub(super) fn note(about: &'static str, at: &str, what: impl Into<String>) -> Finding {
        Finding::new(Severity::Note, about, at, what)
    }

    pub(super) fn unknown(about: &'static str, at: &str, what: impl Into<String>) -> Finding {
        Finding::new(Severity::Unknown, about, at, what)
    }

    pub(super) fn warning(about: &'static str, at: &str, what: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, about, at, what)
    }

    pub(super) fn problem(about: &'static str, at: &str, what: impl Into<String>) -> Finding {
        Finding::new(Severity::Problem, about, at, what)
    }

    /// With the next thing to type.
    pub(super) fn next(mut self, next: impl Into<String>) -> Finding {
        self.next = Some(next.into());
        self
    }

    pub(super) fn data(mut self, data: Value) -> Finding {
        self.data = Some(data);
        self
    }

    /// Two lines for people: the finding, and the next thing to type.
    fn text(&self, out: Out) -> String {
        let state = format!("{:7}", self.state.name());
        let state = match self.state {
            Severity::Ok | Severity::Note => out.faint(&state),
            _ => out.strong(&state),
        };
        let (about, at, what) = (self.about, one_line(&self.at), one_line(&self.what));
        let mut text = format!("{state}  {about:11}  {at}: {what}");
        if let Some(next) = &self.next {
            text.push_str(&format!("\n{:22}{}", "", one_line(next)));
        }
        text
    }
}

/// Text from elsewhere must not control the terminal, or make a line look like another finding.
fn one_line(text: &str) -> String {
    super::super::inspect::printable(&text.replace('\n', " "))
}

/// Prints all findings, and returns the exit status.
pub(super) fn report(findings: &[Finding], out: Out) -> Result<u8, Failure> {
    for finding in findings {
        if out.json {
            out.value(finding)?
        } else {
            out.text(&finding.text(out))?
        }
    }
    if !out.json {
        out.text(&summary(findings))?;
    }
    Ok(status(findings))
}

fn summary(findings: &[Finding]) -> String {
    let counts = [
        Severity::Problem,
        Severity::Warning,
        Severity::Unknown,
        Severity::Note,
        Severity::Ok,
    ]
    .map(|state| {
        let count = findings.iter().filter(|it| it.state == state).count();
        (state, count)
    });
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    let counts = counts.map(|(state, count)| match (state, count) {
        (Severity::Ok | Severity::Unknown, _) | (_, 1) => format!("{count} {}", state.name()),
        _ => format!("{count} {}s", state.name()),
    });
    counts.collect::<Vec<_>>().join(", ")
}

/// 0: nothing to do. 1: something to do. 125: nothing to do as far as could be seen.
fn status(findings: &[Finding]) -> u8 {
    let worst = findings.iter().map(|finding| finding.state).max();
    match worst {
        None | Some(Severity::Ok | Severity::Note) => 0,
        Some(Severity::Unknown) => FAILED,
        Some(Severity::Warning | Severity::Problem) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_that_of_the_worst_finding() {
        let all = [
            (Finding::ok("a", "b", "c"), 0),
            (Finding::note("a", "b", "c"), 0),
            (Finding::unknown("a", "b", "c"), 125),
            (Finding::warning("a", "b", "c"), 1),
            (Finding::problem("a", "b", "c"), 1),
        ];
        let mut findings = Vec::new();
        assert_eq!(status(&findings), 0);
        for (finding, expected) in all {
            findings.insert(0, finding);
            assert_eq!(status(&findings), expected);
        }
        assert_eq!(
            summary(&findings),
            "1 problem, 1 warning, 1 unknown, 1 note, 1 ok"
        );
    }

    #[test]
    fn text_from_elsewhere_stays_on_its_line() {
        let finding = Finding::problem("disk", "a", "x\nok       disk  \x1b[1m").next("y\nz");
        let text = finding.text(Out::new(false));
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("\u{fffd}[1m"), "{text}");
    }
}
