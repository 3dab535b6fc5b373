//! The page's colours, for light and dark, and its shapes. Hues after Okabe and Ito; every difference also shows as
//! a shape, a pattern or a word.

/// (name, in light, in dark).
const COLOURS: &[(&str, &str, &str)] = &[
    ("bg", "#ffffff", "#0f141a"),
    ("ink", "#1d2733", "#e6ebf1"),
    ("soft", "#52606d", "#9fb0c0"),
    ("line", "#dfe4ea", "#2a323d"),
    ("lane", "#f6f8fa", "#171d25"),
    ("hold", "#cfe5f5", "#12354f"),
    ("hold-line", "#0063a6", "#6db8f0"),
    ("think", "#8cc1e6", "#1f5d8c"),
    ("pause", "#aab4be", "#65717e"),
    ("kept", "#00785a", "#2bbf96"),
    ("lost", "#c2410c", "#ff8a57"),
    ("lost-soft", "#fdebe3", "#40200f"),
    ("reject", "#97408a", "#e29bd7"),
    ("outage", "#fff3c4", "#4a3a08"),
];

const SHAPES: &str = "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);\
    font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}\
    main{max-width:1160px;margin:0 auto;padding:28px 20px 60px}h1{font-size:1.7rem;line-height:1.2;margin:0 0 .4em}\
    h2{font-size:1.25rem;line-height:1.3;margin:2.6em 0 .3em}h3{font-size:1rem;margin:1.6em 0 .3em}\
    p{max-width:80ch;margin:.3em 0 1em}.soft,footer{color:var(--soft);font-size:.88rem}\
    code{font-size:.9em;overflow-wrap:anywhere}.scroll{overflow-x:auto}\
    table{border-collapse:collapse;font-size:.9rem;margin:.5em 0;font-variant-numeric:tabular-nums}\
    th,td{text-align:right;padding:4px 18px 4px 0;border-bottom:1px solid var(--line);white-space:nowrap}\
    th:first-child,td:first-child,.left{text-align:left}.why{white-space:normal;text-align:left;min-width:16em}\
    .bad{color:var(--lost);font-weight:600}.good{color:var(--kept);font-weight:600}\
    svg{display:block;max-width:100%;height:auto;min-width:900px}svg.key{min-width:0;flex:none}\
    .legend{display:flex;flex-wrap:wrap;gap:6px 20px;list-style:none;margin:1em 0;padding:10px 14px;\
    border:1px solid var(--line);border-radius:8px;font-size:.85rem}.legend li{display:flex;align-items:center;gap:7px}\
    details{margin:.6em 0}summary{cursor:pointer;color:var(--soft)}\
    text{font:12.5px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;fill:var(--ink)}\
    text.tick{fill:var(--soft);font-size:11.5px}text.strong{font-weight:600}text.in{font-size:11px}\
    .lane{fill:var(--lane)}.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}\
    .hold{fill:var(--hold);stroke:var(--hold-line);stroke-width:1}.think{fill:var(--think)}\
    .pause{fill:url(#hatch);stroke:var(--pause);stroke-width:1}.hatch{stroke:var(--pause);stroke-width:2}\
    .outage{fill:var(--outage)}.kept{fill:var(--kept)}.lost{fill:none;stroke:var(--lost);stroke-width:3;stroke-linecap:round}\
    .reject{fill:var(--reject)}.claimed{fill:var(--hold-line)}.read{fill:var(--bg);stroke:var(--hold-line);stroke-width:1.5}\
    .bar-lost{fill:var(--lost)}.bar-none{fill:var(--kept)}.ink-lost{fill:var(--lost);font-weight:600}\
    .ink-reject{fill:var(--reject);font-weight:600}.ink-kept{fill:var(--kept);font-weight:600}\
    .rejected-tick{stroke:var(--reject);stroke-width:1.2;stroke-opacity:.65}";

/// The style sheet.
pub(super) fn sheet() -> String {
    let variables = |dark: bool| -> String {
        let each = COLOURS.iter().map(|(name, light, darker)| {
            let value = if dark { darker } else { light };
            format!("--{name}:{value};")
        });
        each.collect()
    };
    format!(
        ":root{{color-scheme:light dark;{}}}@media(prefers-color-scheme:dark){{:root{{{}}}}}{SHAPES}",
        variables(false),
        variables(true)
    )
}
