//! The page.

use std::fmt::Write as _;

use super::moment::Moment;
use super::{Outcome, Report, Run, bars, rejects, style, timeline};
use crate::chaos::verdict::ArmReport;

const LEGEND: &[(&str, &str)] = &[
    (
        "<rect class=\"hold\" x=\"1\" y=\"3\" width=\"28\" height=\"14\"/>",
        "from grant to release, as the worker knows it",
    ),
    (
        "<rect class=\"think\" x=\"1\" y=\"6\" width=\"28\" height=\"9\"/>",
        "between its read and its write",
    ),
    (
        "<rect x=\"1\" y=\"6\" width=\"28\" height=\"8\" fill=\"none\" stroke=\"var(--pause)\"/>\
         <path d=\"M4 14l5 -8m4 8l5 -8m4 8l5 -8\" stroke=\"var(--pause)\" stroke-width=\"2\"/>",
        "stopped",
    ),
    (
        "<rect class=\"outage\" x=\"1\" y=\"1\" width=\"28\" height=\"18\"/>",
        "a fault of a server or the network",
    ),
    (
        "<path class=\"claimed\" d=\"M15 5l5 9h-10z\"/>",
        "claimed: the fence stands at its token",
    ),
    (
        "<circle class=\"read\" cx=\"15\" cy=\"10\" r=\"4\"/>",
        "read the set",
    ),
    (
        "<circle class=\"kept\" cx=\"15\" cy=\"10\" r=\"5\"/>",
        "an add acknowledged, and kept",
    ),
    (
        "<path class=\"lost\" d=\"M10 5l10 10m0 -10l-10 10\"/>",
        "an add acknowledged, and lost",
    ),
    (
        "<rect class=\"reject\" x=\"10\" y=\"5\" width=\"10\" height=\"10\"/>",
        "refused: its token is below the fence",
    ),
];

/// The whole report as one page.
pub(super) fn page(report: &Report) -> String {
    let mut body = String::new();
    let machine = &report.machine;
    // Writing to a String cannot fail; the same holds below.
    let _ = write!(
        body,
        "<h1>Chaos: what was lost behind each kind of fence</h1><p><strong>No lock service can stop two processes \
         from both believing they hold a lock. The lease saves work; the fence keeps data safe.</strong></p>\
         <p>Workers hold a lock, read a set, think, and write the set with one element more. An add counts as lost \
         when the resource had acknowledged it and the final set does not have it. The arms ran side by side under \
         the same draws.</p><p class=\"soft\"><code>{}</code><br>{}, authority: {}; seed {}; {} × {}, Linux {}; {}</p>",
        escape(&report.command),
        escape(&report.program),
        escape(&report.authority_version),
        report.seed,
        machine.cores,
        escape(&machine.processor),
        escape(&machine.kernel),
        report.ended
    );
    table(&mut body, &report.runs);
    let _ = write!(
        body,
        "<h2>Lost of what was acknowledged</h2><div class=\"scroll\">{}</div>",
        bars::draw(&report.runs)
    );
    body.push_str("<h2>How to read the timelines</h2><ul class=\"legend\">");
    for (key, words) in LEGEND {
        let _ = write!(
            body,
            "<li><svg class=\"key\" width=\"30\" height=\"20\" viewBox=\"0 0 30 20\" aria-hidden=\"true\">{key}</svg>{words}</li>"
        );
    }
    body.push_str("</ul>");
    report.runs.iter().for_each(|run| section(&mut body, run));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>Palisade chaos</title><style>{}</style></head>\n\
         <body><main>{body}<footer>Drawn by <code>palisade-lab chaos</code>. Times are milliseconds since the world \
         began, on the director’s clock, when a worker’s line reached it.</footer></main></body></html>\n",
        style::sheet()
    )
}

fn table(body: &mut String, runs: &[Run]) {
    body.push_str(
        "<div class=\"scroll\"><table><tr><th>nemesis</th><th class=\"left\">arm</th><th>acknowledged</th><th>lost</th>\
         <th>rejects</th><th>inverted grants</th><th>no answer</th><th>grants</th><th>faults made</th><th>seconds</th></tr>",
    );
    for run in runs {
        for (at, report) in run.arms.iter().enumerate() {
            let word = if at == 0 {
                run.nemesis.word()
            } else {
                String::new()
            };
            let class = if report.lost.is_empty() {
                "good"
            } else {
                "bad"
            };
            let _ = write!(
                body,
                "<tr><td>{word}</td><td class=\"left\">{}</td><td>{}</td><td class=\"{class}\">{} ({:.1} %)</td>\
                 <td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.0}</td></tr>",
                report.arm.word(),
                report.acknowledged,
                report.lost.len(),
                report.share_lost() * 100.0,
                report.rejects.len(),
                report
                    .inverted_grants
                    .map_or("–".to_owned(), |count| count.to_string()),
                report.unknown,
                report.grants,
                report.interventions.values().sum::<u64>(),
                report.seconds
            );
        }
        if run.outcome != Outcome::Kept {
            let word = if run.arms.is_empty() {
                run.nemesis.word()
            } else {
                String::new()
            };
            let _ = write!(
                body,
                "<tr><td>{word}</td><td class=\"why bad\" colspan=\"9\">{}</td></tr>",
                escape(&run.outcome.words())
            );
        }
    }
    body.push_str("</table></div>");
}

fn section(body: &mut String, run: &Run) {
    if run
        .arms
        .iter()
        .all(|report| report.rejects.is_empty() && report.lost.is_empty())
    {
        return;
    }
    let word = run.nemesis.word();
    let _ = write!(
        body,
        "\n<section id=\"{word}\"><h2>{word}</h2><p class=\"soft\">{}. Leases of {} ms; {} teams of {} workers with {} \
         sets each.</p>",
        escape(&run.nemesis.help()),
        run.plan.ttl.as_millis(),
        run.plan.teams,
        run.plan.workers,
        run.plan.lanes
    );
    if let Some(report) = run
        .arms
        .last()
        .filter(|report| !report.interventions.is_empty())
    {
        let kinds = report.interventions.iter();
        let kinds: Vec<String> = kinds
            .map(|(kind, count)| format!("{count} × {kind}"))
            .collect();
        let _ = write!(
            body,
            "<p class=\"soft\">What was done to the world of the {}: {}.</p>",
            report.arm.word(),
            escape(&kinds.join("; "))
        );
    }
    for report in &run.arms {
        arm(body, run, report);
    }
    body.push_str("</section>");
}

fn arm(body: &mut String, run: &Run, report: &ArmReport) {
    let Some(moment) = Moment::worst(report, &run.plan) else {
        return;
    };
    let what = match report.lost.is_empty() {
        true => "a moment at which it refused",
        false => "its worst moment",
    };
    let label = format!("{}: {what}, on set-{}", report.arm.word(), moment.lane);
    let _ = write!(
        body,
        "<h3>{label}</h3><div class=\"scroll\">{}</div>",
        timeline::draw(&moment, &label)
    );
    if !report.rejects.is_empty() {
        let _ = write!(
            body,
            "<p class=\"soft\">Every reject of this arm, over the whole run:</p><div class=\"scroll\">{}</div>{}",
            rejects::strip(report),
            rejects::table(report)
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
