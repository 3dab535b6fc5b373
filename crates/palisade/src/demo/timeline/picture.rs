//! The whole picture as SVG and as a page: first the losses of the acts, then the legend, then each
//! act.

use std::fmt::Write as _;

use palisade_draw::legend::{self, LegendEntry, entry};
use palisade_draw::page::{page, table};
use palisade_draw::timeline::style;
use palisade_draw::{Anchor, Canvas, Font, Layer, Rect, Shape, escape, wrapped};

use super::chart::{GUTTER, PLOT, chart, sign};
use super::model::{Act, ActEnd, ActOutcome, Ruling, TimelineEvent, Update};
use super::words::{describe, listed};

const TITLE: &str = "What happens to a paused lock holder’s late write";
/// Palisade's main message.
const MESSAGE: &str = "No lock service can stop two processes from both believing they hold a lock. \
    The lease saves work; the fence keeps data safe.";
const EDGE: f64 = 20.0;
const WIDE: f64 = GUTTER + PLOT;

/// One self-contained SVG with all acts below each other.
pub(crate) fn svg(acts: &[Act]) -> String {
    let label = format!(
        "{TITLE}. {}",
        acts.iter().map(alt_text).collect::<Vec<_>>().join(" ")
    );
    drawing(acts).to_svg(&style(), &label)
}

/// The picture as a canvas.
pub(super) fn drawing(acts: &[Act]) -> Canvas {
    let charts: Vec<_> = acts.iter().map(chart).collect();
    let wide = charts
        .iter()
        .map(|chart| chart.lanes.width + GUTTER)
        .fold(WIDE, f64::max);
    let mut canvas = Canvas::new(wide + 2.0 * EDGE, 0.0);
    canvas.text((EDGE, 32.0), Anchor::Start, Font::Title, TITLE, "");
    canvas.text((EDGE, 60.0), Anchor::Start, Font::Body, MESSAGE, "soft");
    let mut y = results(&mut canvas, acts, 80.0) + 16.0;
    y = legend::draw(&mut canvas, legend(), (EDGE, EDGE + WIDE), y) + 12.0;
    for (act, chart) in acts.iter().zip(charts) {
        canvas.text(
            (EDGE, y + 10.0),
            Anchor::Start,
            Font::Heading,
            &act.title,
            "",
        );
        y += 33.0;
        canvas.text(
            (EDGE, y),
            Anchor::Start,
            Font::Strong,
            &act.verdict.headline(),
            outcome(act).0,
        );
        for line in wrapped(&act.explanation, WIDE, Font::Body) {
            y += 19.0;
            canvas.text((EDGE, y), Anchor::Start, Font::Body, &line, "");
        }
        y += 16.0;
        let height = chart.lanes.height;
        canvas.part(EDGE, y, chart.names);
        canvas.part(EDGE + GUTTER, y, chart.lanes);
        y += height + 24.0;
    }
    canvas.height = y;
    canvas
}

/// The results of the acts, side by side; returns the height reached.
fn results(canvas: &mut Canvas, acts: &[Act], top: f64) -> f64 {
    let wide = (WIDE + 14.0) / acts.len().max(1) as f64 - 14.0;
    for (number, act) in acts.iter().enumerate() {
        let left = EDGE + number as f64 * (wide + 14.0);
        let (class, verdict, dangerous) = outcome(act);
        canvas.rect(
            Layer::Ground,
            Rect::new(left, top, wide, 84.0),
            6.0,
            format!("{class}-panel"),
        );
        for (shape, class) in sign(verdict, dangerous, (left + 22.0, top + 41.0)) {
            canvas.mark(Layer::Sign, shape, class);
        }
        let fit = |text: &str, font| palisade_draw::shortened(text, wide - 48.0, font);
        let mut line = |y: f64, font, text: &str, class: &str| {
            canvas.text(
                (left + 42.0, top + y),
                Anchor::Start,
                font,
                &fit(text, font),
                class,
            );
        };
        line(18.0, Font::Body, &capital(act.name.resource()), "");
        line(41.0, Font::Heading, &short(&act.verdict), class);
        line(65.0, Font::Small, &evidence(&act.verdict), "");
    }
    top + 84.0
}

/// The class of an act's outcome, and the verdict and danger of its sign.
fn outcome(act: &Act) -> (&'static str, Option<Ruling>, bool) {
    match act.verdict.outcome() {
        ActOutcome::Lost => ("bad", None, true),
        ActOutcome::Kept => ("good", Some(Ruling::Rejected(0)), false),
        ActOutcome::Incomplete => ("grey", None, false),
    }
}

/// The outcome in a few words.
fn short(verdict: &ActEnd) -> String {
    let lost: Vec<&str> = verdict
        .lost()
        .into_iter()
        .map(|update| update.client.as_str())
        .collect();
    match verdict.outcome() {
        ActOutcome::Lost => format!("update of {} lost", lost.join(" and ")),
        ActOutcome::Kept => "nothing lost".to_owned(),
        ActOutcome::Incomplete => "inconclusive".to_owned(),
    }
}

/// The acknowledgements that clients got, and the final content.
fn evidence(verdict: &ActEnd) -> String {
    let names = |updates: &[Update]| {
        listed(
            &updates
                .iter()
                .map(|update| update.item.clone())
                .collect::<Vec<_>>(),
        )
    };
    let rejected = if verdict.rejected.is_empty() {
        String::new()
    } else {
        format!(", rejected {}", names(&verdict.rejected))
    };
    let acknowledged = names(&verdict.acknowledged);
    format!(
        "acknowledged {acknowledged}{rejected}; list: {}",
        listed(&verdict.content)
    )
}

/// An act in one sentence, for readers who cannot see the picture.
fn alt_text(act: &Act) -> String {
    format!(
        "{}: {}.",
        capital(act.name.resource()),
        act.verdict.headline()
    )
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_uppercase().chain(chars).collect())
        .unwrap_or_default()
}

/// The entries of the legend in reading order.
fn legend() -> Vec<LegendEntry> {
    let bar = |class: &str| {
        (
            Shape::Rect(Rect::new(1.0, 2.0, 34.0, 14.0), 2.0),
            class.to_owned(),
        )
    };
    let line = |class: &str| (Shape::Line((1.0, 9.0), (35.0, 9.0)), class.to_owned());
    let hatched = |class: &str| {
        let mut canvas = Canvas::new(0.0, 0.0);
        canvas.hatch(
            Layer::Bar,
            Rect::new(1.0, 2.0, 34.0, 14.0),
            7.0,
            format!("{class}-hatch"),
        );
        let strokes = canvas
            .marks
            .into_iter()
            .map(|mark| (mark.shape, mark.class));
        [bar(class)].into_iter().chain(strokes).collect::<Vec<_>>()
    };
    let signed = |verdict, dangerous, words| entry(sign(verdict, dangerous, (18.0, 9.0)), words);
    vec![
        signed(
            Some(Ruling::Admitted),
            true,
            "a write that took effect after the next holder’s grant",
        ),
        signed(
            Some(Ruling::Rejected(2)),
            false,
            "rejected: the token is below the highest one seen",
        ),
        signed(Some(Ruling::Admitted), false, "admitted by the fence"),
        signed(Some(Ruling::Unchecked), false, "done without a check"),
        entry([bar("tint-c0")], "lease, or a belief in it"),
        entry(hatched("gap"), "a belief without a lease"),
        entry(hatched("pause"), "paused"),
        entry([bar("wait")], "waiting, or delayed in the network"),
        entry([line("line-c0 message")], "message (thin: answer)"),
        entry(
            [(Shape::Line((18.0, 1.0), (18.0, 17.0)), "end".to_owned())],
            "end of a lease",
        ),
        entry([bar("lost")], "an acknowledged update is gone"),
    ]
}

/// One self-contained page: no script, and no font or picture from elsewhere.
pub(crate) fn html(acts: &[Act]) -> String {
    let mut body =
        format!("<h1>{TITLE}</h1><p><strong>{MESSAGE}</strong></p><ul class=\"results\">");
    // Writing to a String cannot fail; the same applies below.
    for act in acts {
        let (class, verdict) = (outcome(act).0, &act.verdict);
        let _ = write!(
            body,
            "<li class=\"{class}-result\">{}<br><strong class=\"{class}\">{}</strong><br><small>{}</small></li>",
            capital(act.name.resource()),
            escape(&short(verdict)),
            escape(&evidence(verdict))
        );
    }
    let _ = write!(
        body,
        "</ul><p>The same schedule with real processes, once for each kind of resource. Every mark below shows \
         a time that was measured in that run; hover over a mark to read it.</p>{}",
        legend::list(&legend())
    );
    acts.iter().for_each(|act| section(&mut body, act));
    body.push_str(
        "<footer>Drawn by <code>palisade demo</code>. Times are milliseconds since the start of each act, on this \
         machine’s clock. Each client measured its own. For the lock service, it is when a watcher or the client \
         learned of the event, whichever was first. For the resource, the proxy in front of it measured, through which \
         every message went.</footer>",
    );
    page(
        "Palisade demo: a paused holder’s late write",
        &format!("{}{PAGE}", style()),
        &body,
    )
}

const PAGE: &str = ".results{display:flex;flex-wrap:wrap;gap:14px;list-style:none;margin:1em 0;padding:0}\
    .results li{flex:1 1 260px;border:1.5px solid var(--soft);border-radius:8px;padding:10px 16px}\
    .results strong{font-size:1.2rem}.results .bad-result{border-color:var(--bad)}\
    .results .good-result{border-color:var(--good)}\
    .chart{display:flex;min-width:900px}.chart svg{flex:none;height:auto}\
    .chart .names{position:sticky;left:0;background:var(--bg)}";

/// One act: the lane names stay in place while the lanes are scrolled.
fn section(body: &mut String, act: &Act) {
    let chart = chart(act);
    let whole = chart.names.width + chart.lanes.width;
    let share = |part: f64| 100.0 * part / whole;
    let _ = write!(
        body,
        "\n<section id=\"{}\"><h2>{}</h2><p class=\"{}\">{}</p><p>{}</p><div class=\"scroll\" tabindex=\"0\" \
         role=\"group\" aria-label=\"timeline: {}\"><div class=\"chart\"><div class=\"names\" \
         style=\"width:{:.3}%\">{}</div><div style=\"width:{:.3}%\">{}</div></div></div>",
        act.name.word(),
        escape(&act.title),
        outcome(act).0,
        escape(&act.verdict.headline()),
        escape(&act.explanation),
        escape(&act.title),
        share(chart.names.width),
        chart.names.to_inline("", ""),
        share(chart.lanes.width),
        chart.lanes.to_inline("", &alt_text(act))
    );
    let start =
        |event: &TimelineEvent| event.instants().into_iter().reduce(f64::min).unwrap_or(0.0);
    let mut rows: Vec<(f64, &TimelineEvent)> = act
        .events
        .iter()
        .map(|event| (start(event), event))
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let _ = write!(
        body,
        "<details><summary>The {} recorded events</summary>",
        rows.len()
    );
    body.push_str(&table(
        &["ms#", "who", "what", "all its times, ms"],
        rows.into_iter().map(|(ms, event)| {
            let times: Vec<String> = event
                .instants()
                .iter()
                .map(|time| format!("{time:.2}"))
                .collect();
            let who = event.client().unwrap_or("resource").to_owned();
            [format!("{ms:.2}"), who, describe(event), times.join(" → ")]
                .map(|cell| (cell, ""))
                .to_vec()
        }),
    ));
    body.push_str("</details></section>");
}
