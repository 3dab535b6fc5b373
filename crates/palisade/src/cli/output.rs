//! Output: plain text for people, JSON lines for programs.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

use super::failure::Failure;

/// How results are printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    /// One JSON value a line.
    pub(crate) json: bool,
    colour: bool,
    quiet: bool,
}

impl Out {
    pub(crate) fn new(json: bool) -> Out {
        Out {
            json,
            colour: colour_is_wanted() && io::stdout().is_terminal(),
            quiet: false,
        }
    }

    /// The same output without warnings and notes.
    pub(crate) fn quiet(self, quiet: bool) -> Out {
        Out { quiet, ..self }
    }

    /// Prints text for people. A reader that stopped reading (`| head`) is not a failure.
    pub(crate) fn text(self, text: &str) -> Result<(), Failure> {
        write(text)
    }

    /// Prints one value for programs, on one line.
    pub(crate) fn value(self, value: &impl Serialize) -> Result<(), Failure> {
        let line =
            serde_json::to_string(value).map_err(|error| Failure::local(error.to_string()))?;
        write(&line)
    }

    /// Prints text that has to be read. Without a reader it is a failure.
    pub(crate) fn delivered(self, text: &str) -> Result<(), Failure> {
        put(text).map_err(not_written)
    }

    /// Emphasises the most important word of a line.
    pub(crate) fn strong(self, text: &str) -> String {
        self.style("1", text)
    }

    /// Dims text that a reader can skip.
    pub(crate) fn faint(self, text: &str) -> String {
        self.style("2", text)
    }

    fn style(self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Prints a warning to standard error; the program goes on.
    pub(crate) fn warning(self, message: &str) {
        if self.quiet {
            return;
        }
        let text = if self.json {
            serde_json::json!({"warning": {"message": message}}).to_string()
        } else {
            format!("palisade: WARNING: {message}")
        };
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Prints a progress note if standard error is a terminal; otherwise logs it.
    pub(crate) fn note(self, message: &str) {
        if io::stderr().is_terminal() && !self.json && !self.quiet {
            let _ = writeln!(io::stderr(), "palisade: {message}");
        } else {
            tracing::info!("{message}");
        }
    }

    /// Prints why the program ends, to standard error.
    pub(crate) fn failure(self, failure: &Failure) {
        let text = if self.json {
            failure.to_json()
        } else {
            failure.to_text()
        };
        // If this fails, nobody is reading.
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// <https://no-color.org>
pub(super) fn colour_is_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn write(text: &str) -> Result<(), Failure> {
    match put(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(not_written),
    }
}

fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush())
}

fn not_written(error: io::Error) -> Failure {
    Failure::local(format!("standard output: {error}"))
}

/// Names and values in aligned columns.
pub(crate) fn facts(out: Out, rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = rows.iter().map(|(name, value)| {
        let name = out.faint(&format!("{name:width$}"));
        format!("  {name}  {value}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A table whose columns are as wide as their contents; numbers are right-aligned.
pub(crate) fn table<const N: usize>(
    out: Out,
    head: [&str; N],
    right: [bool; N],
    rows: &[[String; N]],
) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    });
    let line = |cells: &[String; N]| {
        let padded = cells.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            if right[column] {
                format!("{cell:>width$}")
            } else {
                format!("{cell:width$}")
            }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![out.faint(&line(&head.map(str::to_owned)))];
    lines.extend(rows.iter().map(line));
    lines.join("\n")
}

/// A duration for people.
pub(crate) fn millis(millis: u64) -> String {
    palisade_core::Span::from_millis(millis)
        .in_words()
        .to_string()
}

/// The authority's wall clock as RFC 3339 in UTC. It is only printed; no decision uses it.
pub(crate) fn wall(at: palisade_core::WallTime) -> String {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_millisecond(millis) {
        Ok(at) => format!("{at:.3}"),
        Err(_) => format!("{millis} ms after 1970"),
    }
}

/// This machine's wall clock in the same form.
pub(crate) fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Out = Out {
        json: false,
        colour: false,
        quiet: false,
    };

    #[test]
    fn columns_are_aligned() {
        let rows = [
            ["a".to_owned(), "7".to_owned()],
            ["longer".to_owned(), "1234".to_owned()],
        ];
        let table = table(PLAIN, ["LOCK", "TOKEN"], [false, true], &rows);
        assert_eq!(table, "LOCK    TOKEN\na           7\nlonger   1234");
    }

    #[test]
    fn durations_print_short() {
        for (given, text) in [
            (999, "999 ms"),
            (4_210, "4.2 s"),
            (15_000, "15 s"),
            (3_000, "3 s"),
            (299_999, "4 min 59 s"),
            (600_000, "10 min 0 s"),
            (7_260_000, "2 h 1 min"),
        ] {
            assert_eq!(millis(given), text);
        }
    }

    #[test]
    fn the_time_of_day_is_utc_with_milliseconds() {
        let now = now();
        assert!(now.len() == 24 && now.ends_with('Z'), "{now}");
    }

    #[test]
    fn a_wall_time_is_utc_with_milliseconds() {
        assert_eq!(
            wall(palisade_core::WallTime(1_779_530_400_123)),
            "2026-05-23T10:00:00.123Z"
        );
    }
}
