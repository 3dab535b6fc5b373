//! The style sheet of the demo's pictures.

use palisade_draw::style::{
    AMBER, AMBER_TINT, BAD, BAD_TINT, GOOD, GOOD_TINT, GREY, GREY_TINT, INK, LANE, PAPER, Rule,
    SOFT, sheet,
};

const RULES: &[Rule] = &[
    (".gap,.both", "fill", AMBER_TINT),
    (".gap,.both", "stroke", AMBER),
    (".gap-hatch", "stroke", ("#f3d67a", "#7d6212")),
    (".both-band", "fill", AMBER_TINT),
    (".pause", "fill", GREY_TINT),
    (".pause-hatch", "stroke", ("#cbd2d9", "#47525e")),
    (".pause", "stroke", GREY),
    (".wait,.network", "fill", LANE),
    (".wait,.network", "stroke", GREY),
    (".fence", "fill", GOOD_TINT),
    (".fence", "stroke", GOOD),
    (".content", "fill", PAPER),
    (".content", "stroke", SOFT),
    (".lost", "fill", BAD_TINT),
    (".lost", "stroke", BAD),
    (".danger", "stroke", BAD),
    (".end,.unchecked", "stroke", INK),
    (".unchecked", "fill", PAPER),
    (".life,.fan", "stroke", GREY),
];

const SHAPES: &str = ".draw .gap,.draw .both,.draw .pause,.draw .wait,.draw .network,\
    .draw .fence,.draw .content{stroke-width:1}.draw .wait,.draw .network{stroke-dasharray:5 3}\
    .draw .lost{stroke-width:1.5}.draw .both-band{opacity:.6}.draw .end{stroke-width:1.2;stroke-dasharray:2 3}\
    .draw .message{stroke-width:1.5}.draw .answer{stroke-width:1;opacity:.65}.draw .danger{stroke-width:3}\
    .draw .unchecked{stroke-width:2}.draw .fan{stroke-width:.8;opacity:.7}.draw .axis{stroke-width:1.5}";

/// The style sheet of the drawings.
pub(super) fn style() -> String {
    sheet(RULES, SHAPES)
}
