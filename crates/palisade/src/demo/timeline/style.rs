//! The colours, once for light and once for dark. Hues after Okabe and Ito, so that colour-blind readers keep them
//! apart; every difference also shows as a shape, a pattern or a word.

use std::fmt::Write as _;

/// (selector, property, value in light, value in dark) within `.tl`.
const COLOURS: &[(&str, &str, &str, &str)] = &[
    ("text", "fill", "#1d2733", "#e6ebf1"),
    ("text", "stroke", "#f6f8fa", "#171d25"),
    (".paper", "fill", "#ffffff", "#0f141a"),
    (".lane", "fill", "#f6f8fa", "#171d25"),
    (".grid", "stroke", "#dfe4ea", "#2a323d"),
    (".life", "stroke", "#9aa5b1", "#56616e"),
    (".leader", "stroke", "#7b8794", "#8592a0"),
    (".axis", "stroke", "#52606d", "#9fb0c0"),
    (".zigzag", "stroke", "#52606d", "#9fb0c0"),
    (".tick", "fill", "#3e4c59", "#c3cdd8"),
    (".stretch", "fill", "#52606d", "#9fb0c0"),
    (".tick,.stretch,.page", "stroke", "#ffffff", "#0f141a"),
    (".post,.notch", "stroke", "#1d2733", "#e6ebf1"),
    (".pause", "fill", "#d3d8de", "#39434e"),
    (".pause-hatch", "stroke", "#9aa5b1", "#65717e"),
    (".on-pause", "stroke", "#d3d8de", "#39434e"),
    (".gap-band", "fill", "#fbe9a9", "#5c4a12"),
    (".both-band", "fill", "#f0b429", "#a06a00"),
    (".on-both", "stroke", "#f6e2b4", "#473818"),
    (".gap", "fill", "#fff3c4", "#4a3a08"),
    (".gap", "stroke", "#a06a00", "#f0b429"),
    (".gap-hatch", "stroke", "#f0c75a", "#7d6212"),
    (".on-gap", "stroke", "#fff3c4", "#4a3a08"),
    (".admit", "fill", "#00785a", "#2bbf96"),
    (".reject", "fill", "#c2410c", "#ff8a57"),
    (".sign-inner", "stroke", "#ffffff", "#0f141a"),
    (".unchecked", "fill", "#ffffff", "#0f141a"),
    (".unchecked", "stroke", "#1d2733", "#e6ebf1"),
    (".raise", "fill", "#00785a", "#2bbf96"),
    (".fence", "stroke", "#00785a", "#2bbf96"),
    (".fence-area", "fill", "#cdeee3", "#12392f"),
    (".ink-fence", "fill", "#005c45", "#6fe0bf"),
    (".ink-reject", "fill", "#a83408", "#ffa47d"),
    (".strip", "fill", "#b8c2cc", "#4a5663"),
    (".chip", "fill", "#ffffff", "#0f141a"),
    (".chip", "stroke", "#52606d", "#9fb0c0"),
    (".gone", "fill", "#fdebe3", "#40200f"),
    (".gone", "stroke", "#c2410c", "#ff8a57"),
    ("text.in-gone", "fill", "#a83408", "#ffa47d"),
    (".strike", "stroke", "#a83408", "#ffa47d"),
    (".lost-panel", "fill", "#fdebe3", "#40200f"),
    (".lost-panel", "stroke", "#c2410c", "#ff8a57"),
    (".kept-panel", "fill", "#e0f5ee", "#0f332a"),
    (".kept-panel", "stroke", "#00785a", "#2bbf96"),
    (".incomplete-panel", "fill", "#eef1f4", "#232b35"),
    (".incomplete-panel", "stroke", "#52606d", "#9fb0c0"),
];

/// What each client's colour is: (strong, tint) in light and in dark.
const CLIENTS: [(&str, &str, &str, &str); 4] = [
    ("#0063a6", "#cfe5f5", "#6db8f0", "#12354f"),
    ("#97408a", "#f2dcee", "#e29bd7", "#47223f"),
    ("#7a5c00", "#f1e6c4", "#d9b64a", "#40340d"),
    ("#3d5a6c", "#dbe5ec", "#a3bfd0", "#263844"),
];

/// What does not depend on the colour scheme.
const SHAPES: &str = ".tl text{font:12.5px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;\
    paint-order:stroke;stroke-width:3px;stroke-linejoin:round}\
    .tl path,.tl line{fill:none}\
    .tl .strong{font-weight:600}.tl .tick,.tl .stretch{font-size:11.5px}.tl .stretch{font-style:italic}\
    .tl .delayed{font-style:italic}.tl .chip text,.tl text.in-chip{stroke:none}\
    .tl .h1{font-size:22px;font-weight:700}.tl .h2{font-size:17px;font-weight:650}.tl .h3{font-size:15px;font-weight:650}\
    .tl text.panel-text{stroke:none}\
    .tl .life{stroke-width:1.5}.tl .leader{stroke-width:1}.tl .axis{stroke-width:1.5}.tl .zigzag{stroke-width:1.5}\
    .tl .grid{stroke-width:1;stroke-dasharray:2 4}\
    .tl .bar{stroke-width:1.5}.tl .belief{stroke-width:1.5;stroke-dasharray:none;fill-opacity:.55}\
    .tl .gap{stroke-width:1.5;stroke-dasharray:5 3}.tl .gap-band{opacity:.5}.tl .both-band{opacity:.35}.tl .gap-hatch,.tl .pause-hatch{stroke-width:1.5}\
    .tl .post{stroke-width:2}.tl .end{stroke-width:3}.tl .notch{stroke-width:2}\
    .tl .request{stroke-width:1}.tl .operation{stroke-width:1.8}.tl .answer{stroke-width:1;opacity:.6}\
    .tl .dashed{stroke-dasharray:7 5}.tl .sign-inner{stroke-width:2;stroke-linecap:round;stroke-linejoin:round}\
    .tl .unchecked{stroke-width:2}.tl .unchecked.dashed{stroke-dasharray:2 2.5}\
    .tl .fence{stroke-width:2.5;stroke-linecap:square}.tl .gone{stroke-dasharray:3 2}.tl .strike{stroke-width:1.2}\
    .tl .lost-panel,.tl .kept-panel,.tl .incomplete-panel{stroke-width:1.5}";

/// The style sheet of the drawing.
pub(super) fn sheet() -> String {
    let mut css = String::from(SHAPES);
    colours(&mut css, false);
    css.push_str("@media(prefers-color-scheme:dark){");
    colours(&mut css, true);
    css.push('}');
    css
}

/// The rules for one colour scheme.
fn colours(css: &mut String, dark: bool) {
    for (selectors, property, light, darker) in COLOURS {
        let value = if dark { darker } else { light };
        let scoped: Vec<String> = selectors
            .split(',')
            .map(|selector| format!(".tl {selector}"))
            .collect();
        // Writing to a String cannot fail; the same holds below.
        let _ = write!(css, "{}{{{property}:{value}}}", scoped.join(","));
    }
    for (index, client) in CLIENTS.iter().enumerate() {
        let (strong, tint) = if dark {
            (client.2, client.3)
        } else {
            (client.0, client.1)
        };
        let _ = write!(
            css,
            ".tl .c{index}{{fill:{tint};stroke:{strong}}}.tl .line-c{index}{{stroke:{strong}}}"
        );
        let _ = write!(
            css,
            ".tl .head-c{index}{{fill:{strong}}}.tl text.ink-c{index}{{fill:{strong}}}"
        );
        let _ = write!(css, ".tl text.on-c{index}{{stroke:{tint}}}");
    }
}
