//! The page: the message, the legend, and each act with its chart, its verdict and a table of its events.

use std::fmt::Write as _;

use super::layout::{GUTTER, PLOT, scene};
use super::model::{Act, Event, Outcome, Update, Verdict};
use super::scene::Scene;
use super::spans::{client, describe, instants};
use super::svg::{MESSAGE, escape, gutter, panel_class, plot, write_shape};
use super::{legend, sign, style};

/// The page's own style; the drawing's is added to it.
const PAGE: &str = ":root{color-scheme:light dark;--bg:#fff;--ink:#1d2733;--soft:#52606d;--line:#dfe4ea;--lane:#f6f8fa;\
    --lost:#fdebe3;--lost-line:#c2410c;--kept:#e0f5ee;--kept-line:#00785a}\
    @media(prefers-color-scheme:dark){:root{--bg:#0f141a;--ink:#e6ebf1;--soft:#9fb0c0;--line:#2a323d;--lane:#171d25;\
    --lost:#40200f;--lost-line:#ff8a57;--kept:#0f332a;--kept-line:#2bbf96}}\
    *{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);\
    font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}\
    main{max-width:1300px;margin:0 auto;padding:28px 20px 60px}h1{font-size:1.7rem;line-height:1.2;margin:0 0 .4em}\
    h2{font-size:1.25rem;line-height:1.3;margin:2.6em 0 .3em}p{max-width:75ch;margin:.3em 0 1em}.message{font-size:1.1rem}\
    .legend{display:flex;flex-wrap:wrap;gap:6px 22px;list-style:none;margin:1.2em 0 0;padding:12px 14px;\
    border:1px solid var(--line);border-radius:8px;font-size:.85rem;line-height:1.3}\
    .legend li{display:flex;align-items:center;gap:8px}.legend svg{flex:none}\
    .chart{overflow-x:auto;-webkit-overflow-scrolling:touch}.chart div{display:flex;align-items:flex-start;min-width:1080px}\
    .chart svg{display:block;height:auto}.gutter{width:10.4839%;position:sticky;left:0;background:var(--bg)}\
    .plot{width:89.5161%}.verdict{border:1.5px solid;border-radius:8px;padding:12px 16px;margin:.8em 0}\
    .verdict h3{display:flex;align-items:center;gap:10px;margin:0 0 .3em;font-size:1.05rem;line-height:1.3}\
    .verdict h3 svg{flex:none}\
    .lost{background:var(--lost);border-color:var(--lost-line)}.kept{background:var(--kept);border-color:var(--kept-line)}\
    .incomplete{background:var(--lane);border-color:var(--soft)}dl{display:flex;flex-wrap:wrap;gap:4px 26px;margin:0}\
    dl div{display:flex;flex-wrap:wrap;gap:4px 8px;align-items:center}dt{color:var(--soft)}dd{margin:0}\
    dd span{display:inline-block;border:1px solid var(--soft);border-radius:99px;padding:0 10px;background:var(--bg);margin-right:4px}\
    dd span.out{border:1px dashed var(--lost-line);text-decoration:line-through}\
    details{margin:.8em 0}summary{cursor:pointer;color:var(--soft)}.scroll{overflow-x:auto}\
    table{border-collapse:collapse;min-width:640px;font-size:.88rem;margin-top:.5em}th,td{text-align:left;padding:3px 16px 3px 0;\
    border-bottom:1px solid var(--line);vertical-align:top}td:first-child,th:first-child{text-align:right;\
    font-variant-numeric:tabular-nums;white-space:nowrap}footer{color:var(--soft);font-size:.85rem;margin-top:3em}\
    .hint{display:none;color:var(--soft);font-size:.85rem;margin:.2em 0}@media(max-width:1100px){.hint{display:block}}\
    @media(max-width:700px){main{padding:18px 12px 40px}.legend{gap:5px 16px}}";

/// One self-contained HTML page: no script, no font, no picture from anywhere else.
#[must_use]
pub(crate) fn html(acts: &[Act]) -> String {
    let mut body = String::new();
    // Writing to a String cannot fail; the same holds below.
    let _ = write!(
        body,
        "<h1>What happens to a paused lock holder’s late write</h1>"
    );
    let _ = write!(
        body,
        "<p class=\"message\"><strong>{}</strong></p>",
        escape(MESSAGE)
    );
    let _ = write!(
        body,
        "<p>The same story with real processes, told {}. Every mark below is drawn from a time that was measured in \
         that run; hover over one to read it.</p>",
        match acts.len() {
            1 => "once".to_owned(),
            2 => "twice, each time with another resource".to_owned(),
            count => format!(
                "{} times, each time with another resource",
                if count == 3 {
                    "three".to_owned()
                } else {
                    count.to_string()
                }
            ),
        }
    );
    legend_list(&mut body);
    acts.iter().for_each(|act| section(&mut body, act));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>Palisade demo: a paused holder’s late write</title>\
         <style>{PAGE}{}</style></head>\n<body><main>{body}<footer>Drawn by <code>palisade demo</code>. Times are \
         milliseconds since the start of each act, on this machine’s clock. Each client took its own. The lock service’s \
         are those at which a watcher or the client was told, whichever came first. The resource’s were taken next to \
         it, by the proxy that every message to it went through.</footer></main></body></html>\n",
        style::sheet()
    )
}

/// The legend as a list that wraps on small screens.
fn legend_list(body: &mut String) {
    body.push_str("<ul class=\"legend\">");
    let (w, h) = legend::BOX;
    for item in legend::items() {
        let _ = write!(
            body,
            "<li><svg class=\"tl\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" aria-hidden=\"true\">"
        );
        item.marks
            .iter()
            .for_each(|mark| write_shape(body, &mark.shape, &mark.class));
        let _ = write!(body, "</svg>{}</li>", escape(item.words));
    }
    body.push_str("</ul>");
}

/// One act.
fn section(body: &mut String, act: &Act) {
    let word = act.name.word();
    let _ = write!(
        body,
        "\n<section id=\"{word}\"><h2>{}</h2><p>{}</p>",
        escape(&act.title),
        escape(&act.explanation)
    );
    chart(body, &scene(act), &act.title);
    verdict(body, &act.verdict);
    table(body, &act.events);
    body.push_str("</section>");
}

/// The chart: the lane names stay in place while the plot scrolls.
fn chart(body: &mut String, scene: &Scene, title: &str) {
    let h = scene.height;
    body.push_str("<p class=\"hint\">Scroll the chart sideways to follow time →</p>");
    let _ = write!(
        body,
        "<div class=\"chart\" tabindex=\"0\" role=\"group\" aria-label=\"timeline: {}\"><div>",
        escape(title)
    );
    let _ = write!(
        body,
        "<svg class=\"tl gutter\" viewBox=\"0 0 {GUTTER} {h:.1}\">{}</svg>\
         <svg class=\"tl plot\" viewBox=\"0 0 {PLOT} {h:.1}\" role=\"img\" aria-label=\"{}\">{}</svg></div></div>",
        gutter(scene),
        escape(title),
        plot(scene)
    );
}

/// The verdict with its evidence.
fn verdict(body: &mut String, verdict: &Verdict) {
    let class = match verdict.outcome() {
        Outcome::Lost => "lost",
        Outcome::Kept => "kept",
        Outcome::Incomplete => "incomplete",
    };
    let _ = write!(
        body,
        "<div class=\"verdict {class}\"><h3><svg class=\"tl\" width=\"16\" height=\"16\" aria-hidden=\"true\">"
    );
    for (shape, class) in sign::shapes(panel_class(verdict.outcome()).1, (8.0, 8.0)) {
        write_shape(body, &shape, &class);
    }
    let _ = write!(body, "</svg>{}</h3><dl>", escape(&verdict.headline()));
    chips(
        body,
        "acknowledged",
        verdict.acknowledged.iter().map(item),
        "",
    );
    chips(body, "rejected", verdict.rejected.iter().map(item), "");
    chips(
        body,
        "final content",
        verdict.content.iter().map(String::as_str),
        "",
    );
    chips(
        body,
        "acknowledged but gone",
        verdict.lost().into_iter().map(item),
        " class=\"out\"",
    );
    body.push_str("</dl></div>");
}

/// The item of an update.
fn item(update: &Update) -> &str {
    &update.item
}

/// A titled list of items.
fn chips<'a>(body: &mut String, title: &str, items: impl Iterator<Item = &'a str>, class: &str) {
    let spans: String = items
        .map(|item| format!("<span{class}>{}</span>", escape(item)))
        .collect();
    let shown = if spans.is_empty() {
        "none".to_owned()
    } else {
        spans
    };
    let _ = write!(body, "<div><dt>{title}</dt><dd>{shown}</dd></div>");
}

/// Every event in order of time.
fn table(body: &mut String, events: &[Event]) {
    let mut rows: Vec<(f64, &Event)> = events.iter().map(|event| (start(event), event)).collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let _ = write!(
        body,
        "<details><summary>The {} recorded events</summary><div class=\"scroll\"><table><thead><tr><th>ms</th><th>who</th>\
         <th>what</th><th>all its times, ms</th></tr></thead><tbody>",
        rows.len()
    );
    for (ms, event) in rows {
        let times: Vec<String> = instants(event)
            .iter()
            .map(|time| format!("{time:.2}"))
            .collect();
        let who = client(event).unwrap_or("resource");
        let _ = write!(
            body,
            "<tr><td>{ms:.2}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(who),
            escape(&describe(event)),
            times.join(" → ")
        );
    }
    body.push_str("</tbody></table></div></details>");
}

/// The first time of an event; 0 for one without any.
fn start(event: &Event) -> f64 {
    instants(event).into_iter().reduce(f64::min).unwrap_or(0.0)
}
