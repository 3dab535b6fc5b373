//! The HTML page around pictures: one file, without scripts or external resources.

use std::fmt::Write as _;

use crate::escape;

/// The page's own style sheet; the style sheet of its pictures is added to it.
const STYLE: &str = ":root{color-scheme:light dark;--bg:#fff;--ink:#1d2733;--soft:#52606d;--line:#dfe4ea;--good:#00785a;\
    --bad:#c0260f}@media(prefers-color-scheme:dark){:root{--bg:#0f141a;--ink:#e6ebf1;--soft:#9fb0c0;--line:#2a323d;\
    --good:#2bbf96;--bad:#ff7b66}}*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);\
    font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}\
    main{max-width:1160px;margin:0 auto;padding:28px 20px 60px}h1{font-size:1.7rem;line-height:1.2;margin:0 0 .4em}\
    h2{font-size:1.25rem;line-height:1.3;margin:2.4em 0 .3em}h3{font-size:1rem;margin:1.6em 0 .3em}\
    p{max-width:80ch;margin:.3em 0 1em}p.soft,footer{color:var(--soft);font-size:.88rem}footer{margin-top:3em}\
    :is(p,td,strong).good{color:var(--good);font-weight:600}:is(p,td,strong).bad{color:var(--bad);font-weight:600}\
    code{font-size:.9em;overflow-wrap:anywhere}svg.draw{display:block;max-width:none}svg.key{flex:none;width:36px;height:18px}\
    .scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}.scroll>svg{width:100%;min-width:860px;height:auto}\
    .legend{display:flex;flex-wrap:wrap;gap:6px 20px;list-style:none;margin:1em 0;padding:10px 14px;\
    border:1px solid var(--line);border-radius:8px;font-size:.85rem;line-height:1.3}\
    .legend li{display:flex;align-items:center;gap:8px}details{margin:.8em 0}summary{cursor:pointer;color:var(--soft)}\
    table{border-collapse:collapse;font-size:.88rem;margin:.5em 0;font-variant-numeric:tabular-nums}\
    th,td{text-align:left;padding:4px 18px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}\
    td.number,th.number{text-align:right;white-space:nowrap}\
    @media(max-width:700px){main{padding:18px 12px 40px}.legend{gap:5px 16px}}";

/// Returns a whole page. `body` is HTML; `style` is the style sheet of its pictures and of the body's own classes.
#[must_use]
pub fn page(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{}</title><style>{STYLE}{style}</style></head>\n\
         <body><main>{body}</main></body></html>\n",
        escape(title)
    )
}

/// Returns a table. Columns named `"…#"` contain numbers and are right-aligned. A cell is text and its CSS classes.
#[must_use]
pub fn table(
    columns: &[&str],
    rows: impl IntoIterator<Item = Vec<(String, &'static str)>>,
) -> String {
    let is_number = |column: usize| columns.get(column).is_some_and(|name| name.ends_with('#'));
    let mut html = String::from("<div class=\"scroll\"><table><thead><tr>");
    // Writing to a String cannot fail.
    for (number, name) in columns.iter().enumerate() {
        let class = if is_number(number) {
            " class=\"number\""
        } else {
            ""
        };
        let _ = write!(
            html,
            "<th{class}>{}</th>",
            escape(name.trim_end_matches('#'))
        );
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        let last = row.len().saturating_sub(1);
        for (number, (text, class)) in row.iter().enumerate() {
            let class = match (is_number(number), *class) {
                (false, "") => String::new(),
                (false, class) => format!(" class=\"{class}\""),
                (true, class) => format!(" class=\"number {class}\""),
            };
            // The last cell of a short row spans the remaining columns.
            let missing = columns.len().saturating_sub(number + 1);
            let span = if number == last && missing > 0 {
                format!(" colspan=\"{}\"", missing + 1)
            } else {
                String::new()
            };
            let _ = write!(html, "<td{class}{span}>{}</td>", escape(text));
        }
        html.push_str("</tr>");
    }
    html + "</tbody></table></div>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_escaped_aligned_and_fill_their_row() {
        let rows = [
            vec![("<a>".to_owned(), ""), ("7".to_owned(), "bad")],
            vec![("all".to_owned(), "")],
        ];
        let html = table(&["name", "count#"], rows);
        assert!(html.contains("<th>name</th><th class=\"number\">count</th>"));
        assert!(html.contains("<tr><td>&lt;a&gt;</td><td class=\"number bad\">7</td></tr>"));
        assert!(html.contains("<tr><td colspan=\"2\">all</td></tr>"));
        let page = page("a < b", "", &html);
        assert!(page.starts_with("<!doctype html>") && page.contains("<title>a &lt; b</title>"));
        assert!(!page.contains("<script") && !page.contains("href=") && !page.contains("src="));
    }
}
