//! Colours for light and dark schemes. The hues are those of Okabe and Ito, which colour-blind readers can
//! distinguish. A picture should also show every difference as a shape, a pattern or a word.
//!
//! Colours are written out, because not every SVG renderer supports CSS variables. A renderer without media queries
//! draws the light picture.

use std::fmt::Write as _;

/// A colour in the light and in the dark scheme.
pub type Colour = (&'static str, &'static str);

/// Selectors (separated by commas), a property, and its colour.
pub type StyleRule = (&'static str, &'static str, Colour);

/// Text.
pub const INK: Colour = ("#1d2733", "#e6ebf1");
/// Secondary text.
pub const SOFT: Colour = ("#52606d", "#9fb0c0");
/// The background.
pub const PAPER: Colour = ("#ffffff", "#0f141a");
/// The background of a lane.
pub const LANE: Colour = ("#f4f6f9", "#171d25");
/// Grid lines.
pub const GRID: Colour = ("#dfe4ea", "#2a323d");
/// Data is lost, or about to be.
pub const BAD: Colour = ("#c0260f", "#ff7b66");
/// The background for [`BAD`].
pub const BAD_TINT: Colour = ("#fde7e3", "#451a13");
/// Data is safe.
pub const GOOD: Colour = ("#00785a", "#2bbf96");
/// The background for [`GOOD`].
pub const GOOD_TINT: Colour = ("#def4ec", "#0f332a");
/// A warning.
pub const AMBER: Colour = ("#9a6700", "#f0b429");
/// The background for [`AMBER`].
pub const AMBER_TINT: Colour = ("#fff0b8", "#4a3a08");
/// Neutral.
pub const GREY: Colour = ("#8592a0", "#77848f");
/// The background for [`GREY`].
pub const GREY_TINT: Colour = ("#dfe4e9", "#333d48");

/// The colour and the tint of each participant: `c0` to `c3`.
pub const SERIES: [(Colour, Colour); 4] = [
    (("#0063a6", "#6db8f0"), ("#cfe5f5", "#12354f")),
    (("#8a3a80", "#e29bd7"), ("#f2dcee", "#47223f")),
    (("#6b5200", "#d9b64a"), ("#f1e6c4", "#40340d")),
    (("#3d5a6c", "#a3bfd0"), ("#dbe5ec", "#263844")),
];

const COMMON: &[StyleRule] = &[
    ("text", "fill", INK),
    ("text.soft", "fill", SOFT),
    ("text.good", "fill", GOOD),
    ("text.bad", "fill", BAD),
    (".paper", "fill", PAPER),
    (".lane", "fill", LANE),
    (".grid", "stroke", GRID),
    (".axis", "stroke", SOFT),
    (".whisker", "stroke", INK),
    (".good", "fill", GOOD),
    (".bad", "fill", BAD),
    (".grey", "fill", GREY),
    (".good-panel", "fill", GOOD_TINT),
    (".good-panel", "stroke", GOOD),
    (".bad-panel", "fill", BAD_TINT),
    (".bad-panel", "stroke", BAD),
    (".grey-panel", "fill", LANE),
    (".grey-panel", "stroke", SOFT),
    (".on-sign", "stroke", PAPER),
];

/// The styles that do not depend on the colour scheme.
const SHAPES: &str = ".draw text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}\
    .draw path,.draw line{fill:none}.draw .good-panel,.draw .bad-panel,.draw .grey-panel{stroke-width:1.5}\
    .draw .on-sign{stroke-width:2;stroke-linecap:round;stroke-linejoin:round}";

/// Returns the style sheet of a picture: the common classes, then its own rules and shapes.
///
/// `good`, `bad`, `grey` and `c0` to `c3` fill a shape or a text; `line-c0` … are strokes, `tint-c0` … are tints with
/// a border; `good-panel`, `bad-panel` and `grey-panel` are backgrounds with a border.
#[must_use]
pub fn sheet(rules: &[StyleRule], shapes: &str) -> String {
    let mut css = format!("{SHAPES}{shapes}");
    colours(&mut css, rules, |colour| colour.0);
    css.push_str("@media(prefers-color-scheme:dark){");
    colours(&mut css, rules, |colour| colour.1);
    css.push('}');
    css
}

fn colours(css: &mut String, rules: &[StyleRule], scheme: impl Fn(Colour) -> &'static str) {
    // Writing to a String cannot fail.
    for (number, (strong, tint)) in SERIES.into_iter().enumerate() {
        let (strong, tint) = (scheme(strong), scheme(tint));
        let _ = write!(
            css,
            ".draw .c{number},.draw text.c{number}{{fill:{strong}}}.draw .line-c{number}{{stroke:{strong}}}\
             .draw .tint-c{number}{{fill:{tint};stroke:{strong}}}"
        );
    }
    for (selectors, property, colour) in COMMON.iter().chain(rules) {
        let scoped: Vec<String> = selectors
            .split(',')
            .map(|one| format!(".draw {one}"))
            .collect();
        let _ = write!(
            css,
            "{}{{{property}:{}}}",
            scoped.join(","),
            scheme(*colour)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_exists_for_light_and_for_dark() {
        let css = sheet(
            &[("rect.own,path.own", "fill", GOOD)],
            ".draw .own{opacity:.5}",
        );
        let (light, dark) = css
            .split_once("@media(prefers-color-scheme:dark){")
            .unwrap();
        assert!(light.contains(".draw rect.own,.draw path.own{fill:#00785a}"));
        assert!(dark.contains(".draw rect.own,.draw path.own{fill:#2bbf96}"));
        assert_eq!(
            light.matches("fill:").count(),
            dark.matches("fill:").count() + 1
        );
        assert_eq!(css.matches('{').count(), css.matches('}').count());
    }
}
