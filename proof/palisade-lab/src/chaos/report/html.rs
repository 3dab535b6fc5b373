//! The HTML page.

use std::fmt::Write as _;

use palisade_draw::legend::{self, LegendEntry, entry};
use palisade_draw::page;
use palisade_draw::style::{AMBER_TINT, BAD, GREY, PAPER, SERIES, StyleRule, sheet};
use palisade_draw::{Canvas, Layer, Rect, Shape, escape};

use super::moment::Moment;
use super::timeline::{Sign, sign};
use super::{Outcome, Report, Run, bars, rejects, timeline};
use crate::chaos::verdict::ArmReport;

const RULES: &[StyleRule] = &[
    (".hold", "fill", SERIES[0].1),
    (".hold", "stroke", SERIES[0].0),
    (".think", "fill", ("#8cc1e6", "#1f5d8c")),
    (".pause", "fill", PAPER),
    (".pause,.pause-hatch", "stroke", GREY),
    (".outage", "fill", AMBER_TINT),
    ("path.claimed", "fill", SERIES[0].0),
    (".read", "fill", PAPER),
    (".read", "stroke", SERIES[0].0),
    (".loss", "stroke", BAD),
];

const SHAPES: &str = ".draw .pause-hatch{stroke-width:1.5}.draw .read{stroke-width:1.5}\
    .draw .loss{stroke-width:3;stroke-linecap:round}";

/// The legend of the timelines.
fn legend() -> Vec<LegendEntry> {
    let bar = |class: &str, y: f64, h: f64| {
        let bar = Rect::new(1.0, y, 34.0, h);
        (Shape::Rect(bar, 0.0), class.to_owned())
    };
    let hatched = || {
        let mut canvas = Canvas::new(0.0, 0.0);
        canvas.hatch(
            Layer::Bar,
            Rect::new(1.0, 5.0, 34.0, 9.0),
            6.0,
            "pause-hatch",
        );
        let strokes = canvas.marks.into_iter();
        [bar("pause", 5.0, 9.0)]
            .into_iter()
            .chain(strokes.map(|mark| (mark.shape, mark.class)))
    };
    let signed = |which, words| {
        let (shape, class) = sign(which, (18.0, 9.0));
        entry([(shape, class.to_owned())], words)
    };
    vec![
        entry(
            [bar("hold", 2.0, 14.0)],
            "from grant to release, as the worker knows it",
        ),
        entry([bar("think", 4.0, 10.0)], "between its read and its write"),
        entry(hatched(), "stopped"),
        entry(
            [bar("outage", 0.0, 18.0)],
            "a fault of a server or the network",
        ),
        signed(Sign::Claimed, "claimed: the fence is at its token"),
        signed(Sign::Read, "read the set"),
        signed(Sign::Kept, "an add acknowledged, and kept"),
        signed(
            Sign::Lost,
            "an add acknowledged, and lost; or a second read that differs",
        ),
        signed(Sign::Rejected, "rejected: its token is below the fence"),
    ]
}

fn picture(canvas: &Canvas, label: &str) -> String {
    format!(
        "<div class=\"scroll\">{}</div>",
        canvas.to_inline("", label)
    )
}

/// The whole report as one page.
pub(super) fn page(report: &Report) -> String {
    let mut body = String::new();
    let machine = &report.machine;
    // Writing to a String cannot fail; the same applies below.
    let _ = write!(
        body,
        "<h1>Chaos: what was lost behind each kind of fence</h1><p><strong>No lock service can stop two processes \
         from both believing they hold a lock. The lease saves work; the fence keeps data safe.</strong></p>\
         <p>Workers hold a lock, read a set, think, and write the set with one more element. An add counts as lost \
         if the resource acknowledged it and the final set lacks it. The arms ran side by side with \
         the same random choices.</p><p class=\"soft\"><code>{}</code><br>{}, authority: {}; seed {}; {} × {}, Linux {}; {}</p>",
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
    kinds(&mut body, &report.runs);
    let _ = write!(
        body,
        "<h2>Lost of the acknowledged adds</h2>{}<h2>How to read the timelines</h2>{}",
        picture(
            &bars::draw(&report.runs),
            "Acknowledged adds lost by each arm under each nemesis"
        ),
        legend::list(&legend())
    );
    report.runs.iter().for_each(|run| section(&mut body, run));
    body.push_str(
        "<footer>Drawn by <code>palisade-lab chaos</code>. Times are milliseconds since the world began, on the \
         director’s clock, when a worker’s line arrived.</footer>",
    );
    page::page("Palisade chaos", &sheet(RULES, SHAPES), &body)
}

fn table(body: &mut String, runs: &[Run]) {
    let mut rows = Vec::new();
    for run in runs {
        for (at, report) in run.arms.iter().enumerate() {
            rows.push(row(run, report, at == 0));
        }
        if run.outcome != Outcome::Kept {
            let word = if run.arms.is_empty() {
                run.nemesis.word()
            } else {
                String::new()
            };
            rows.push(vec![(word, ""), (run.outcome.words(), "bad")]);
        }
    }
    let columns = [
        "nemesis",
        "arm",
        "acknowledged#",
        "lost#",
        "rejected#",
        "inverted grants#",
        "no answer#",
        "grants#",
        "faults made#",
        "seconds#",
    ];
    body.push_str(&page::table(&columns, rows));
}

/// The same for each kind of lock, if there are several.
fn kinds(body: &mut String, runs: &[Run]) {
    let mut rows = Vec::new();
    for run in runs.iter().filter(|run| run.plan.kinds.len() > 1) {
        for report in &run.arms {
            rows.extend(report.kinds.iter().map(|(kind, of)| {
                let bad = |count: u64| if count == 0 { "good" } else { "bad" };
                vec![
                    (run.nemesis.word(), ""),
                    (report.arm.word().to_owned(), ""),
                    (kind.word(), ""),
                    (of.grants.to_string(), ""),
                    (of.acknowledged.to_string(), ""),
                    (of.lost.to_string(), bad(of.lost)),
                    (of.reads.to_string(), ""),
                    (of.changed.to_string(), bad(of.changed)),
                    (of.rejects.to_string(), ""),
                ]
            }));
        }
    }
    if rows.is_empty() {
        return;
    }
    let columns = [
        "nemesis",
        "arm",
        "kind of lock",
        "grants#",
        "acknowledged#",
        "lost#",
        "second reads#",
        "changed#",
        "rejected#",
    ];
    let rows = page::table(&columns, rows);
    let _ = write!(
        body,
        "<details><summary>The same for each kind of lock</summary><p>Readers read twice under one grant: the second \
         read must be as the first.</p>{rows}</details>"
    );
}

fn row(run: &Run, report: &ArmReport, is_first: bool) -> Vec<(String, &'static str)> {
    let (lost, percent) = (report.lost.len(), report.share_lost() * 100.0);
    let word = is_first.then(|| run.nemesis.word());
    let inverted = report.inverted_grants.map(|count| count.to_string());
    let cells = [
        word.unwrap_or_default(),
        report.arm.word().to_owned(),
        report.acknowledged.to_string(),
        format!("{lost} ({percent:.1} %)"),
        report.rejects.len().to_string(),
        inverted.unwrap_or("–".to_owned()),
        report.unknown.to_string(),
        report.grants.to_string(),
        report.interventions.values().sum::<u64>().to_string(),
        format!("{:.0}", report.seconds),
    ];
    let is_lost = |column| match (column, lost) {
        (3, 0) => "good",
        (3, _) => "bad",
        _ => "",
    };
    let cells = cells.into_iter().enumerate();
    cells
        .map(|(column, cell)| (cell, is_lost(column)))
        .collect()
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
            "<p class=\"soft\">Faults in the world of the {}: {}.</p>",
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
    let what = if report.lost.is_empty() {
        "a moment with a rejection"
    } else {
        "its worst moment"
    };
    let label = format!("{}: {what}, on set-{}", report.arm.word(), moment.lane);
    let _ = write!(
        body,
        "<h3>{label}</h3>{}",
        picture(&timeline::draw(&moment), &label)
    );
    if !report.rejects.is_empty() {
        let _ = write!(
            body,
            "<p class=\"soft\">Every rejection of this arm, over the whole run:</p>{}{}",
            picture(&rejects::strip(report), "Every rejection over time"),
            rejects::details(report)
        );
    }
}
