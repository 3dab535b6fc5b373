//! The report as a page.

use std::fmt::Write as _;

use super::{Figure, Report, Row, Spread};
use crate::peers::system;
use crate::peers::workload::{self, Workload};

pub(super) fn write(report: &Report) -> String {
    let mut page = String::from("# Palisade compared with other systems\n\n");
    let _ = writeln!(page, "{}.\n", report.machine);
    let _ = writeln!(page, "`{}`\n", report.command);
    let [before, after] = &report.load;
    let restless = report.restless;
    let _ = writeln!(
        page,
        "All systems and the load ran on this machine, in one run, on one disk; each round measured \
         everything once, in shuffled order, and each measurement began when the machine was idle \
         ({restless} could not wait that long). Load average before: {before}, after: {after}. Every \
         token was compared with the previous one of its lock. Figures are medians over the \
         rounds, with minimum and maximum in brackets. `×` is Palisade's figure divided by this \
         one's: above 1 is good in rates, below 1 in times and processor time.\n"
    );
    systems(&mut page);
    for workload in &workload::ALL {
        table(&mut page, report, workload);
    }
    held(&mut page, report);
    let failures = report.failures();
    if !failures.is_empty() {
        page.push_str("## Failures\n\n");
        for failure in failures {
            let _ = writeln!(page, "- {failure}");
        }
    }
    page
}

fn systems(page: &mut String) {
    page.push_str(
        "| system | version | durability of an acknowledgement | token | leases |\n|---|---|---|---|---|\n",
    );
    for profile in &system::ALL {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} |",
            profile.name,
            profile.version(),
            profile.durable,
            profile.token,
            profile.lease
        );
    }
    page.push('\n');
}

fn table(page: &mut String, report: &Report, workload: &Workload) {
    let (rows, own) = report.of(workload);
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(page, "## {}\n", workload.title);
    let _ = writeln!(
        page,
        "Times: {}. Counted: {}.\n",
        workload.measured(),
        workload.unit()
    );
    page.push_str(
        "| system | per second | × | p50 µs | × | p99 µs | × | p99.9 µs | server CPU µs | × | syncs |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        line(page, row, own);
    }
    page.push('\n');
}

fn line(page: &mut String, row: &Row, own: Option<&Row>) {
    let _ = write!(page, "| {} ", row.profile.name);
    let figures: [(Figure, bool); 5] = [
        (|sample| sample.per_second, true),
        (|sample| sample.p50, true),
        (|sample| sample.p99, true),
        (|sample| sample.p999, false),
        (|sample| sample.cpu, true),
    ];
    for (figure, compared) in figures {
        let spread = row.spread(figure);
        let _ = write!(page, "| {} ", brackets(spread));
        if compared {
            let ratio = own.map(|own| own.spread(figure).median / spread.median);
            let _ = match ratio.filter(|ratio| ratio.is_finite()) {
                Some(ratio) => write!(page, "| {ratio:.2} "),
                None => write!(page, "| – "),
            };
        }
    }
    let _ = match &row.syncs {
        Ok(syncs) => writeln!(page, "| {syncs:.3} |"),
        Err(why) => writeln!(page, "| not counted: {why} |"),
    };
}

fn brackets(spread: Spread) -> String {
    let Spread {
        median,
        least,
        most,
    } = spread;
    format!("{} ({}–{})", short(median), short(least), short(most))
}

/// With a sensible number of digits.
pub(super) fn short(figure: f64) -> String {
    match figure {
        figure if figure >= 100.0 => grouped(figure.round()),
        figure if figure >= 10.0 => format!("{figure:.1}"),
        figure => format!("{figure:.2}"),
    }
}

fn grouped(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn held(page: &mut String, report: &Report) {
    let Some((_, locks, _)) = report.held.first() else {
        return;
    };
    let _ = writeln!(page, "## {} held locks\n", grouped(*locks as f64));
    page.push_str(
        "One system after the other, each with the machine to itself. Memory is the server's \
         proportional set, beyond the bytes of the name, once it is idle, and its peak before that. \
         Pairs with 1,000 held locks are measured on another server, alternately; the ratio is the median of the turns. \
         Renewals: every lease once in 10 s, as a time to live of 30 s needs, first without other load, then while \
         64 clients acquire and release other locks; if one lease carries all locks of a client, there is \
         nothing to renew for each lock. Then the server is killed and restarted twice: right after that load, and when \
         it is idle.\n\n\
         | system | acquired per second | bytes a lock | at its peak | pairs/s with 1,000 held | with all | ratio | idle cores | \
         renewals/s | cores | pairs/s meanwhile | cores meanwhile | SIGKILL at work: start to first grant | at rest | next token |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (profile, _, held) in &report.held {
        let Ok(held) = held else { continue };
        let renewals = if profile.renews_each() {
            short(held.renewing.per_second)
        } else {
            "–".to_owned()
        };
        let token = if held.token_rose { "rose" } else { "**fell**" };
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {:.2} | {:.2} | {renewals} | {:.2} | {} | {:.2} | {:.2} s | {:.2} s | {token} |",
            profile.name,
            short(held.fill_per_second),
            short(held.bytes),
            short(held.most_bytes),
            short(held.rates[0]),
            short(held.rates[1]),
            held.slowed,
            held.idle,
            held.renewing.cores,
            short(held.renewing.pairs_per_second),
            held.renewing.cores_beside,
            held.restarts_ms[0] / 1e3,
            held.restarts_ms[1] / 1e3,
        );
    }
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let all = [0.123, 7.0, 45.678, 123.4, 1_234_567.0].map(short);
        assert_eq!(all, ["0.12", "7.00", "45.7", "123", "1,234,567"]);
    }
}
