//! The signs and the style of timelines: what happened to a resource over time, as bars and signs on lanes.

use crate::style::{
    AMBER, AMBER_TINT, BAD, BAD_TINT, GOOD, GOOD_TINT, GREY, GREY_TINT, INK, LANE, PAPER, SOFT,
    StyleRule, sheet,
};
use crate::{Rect, Shape};

/// The outcome of an operation at a resource; each has a colour and a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// A write that took effect and must not have: a red triangle with an exclamation mark.
    Dangerous,
    /// Rejected: a green square with a cross.
    Rejected,
    /// Admitted: a grey disc with a check mark.
    Admitted,
    /// Done without a check: an empty disc.
    Unchecked,
}

impl Sign {
    /// Its shapes around this point, with their CSS classes.
    #[must_use]
    pub fn shapes(self, (x, y): (f64, f64)) -> Vec<(Shape, String)> {
        let path = |data: String, class: &str| (Shape::Path(data), class.to_owned());
        let disc = |class: &str| (Shape::Circle((x, y), 6.5), class.to_owned());
        match self {
            Sign::Dangerous => {
                let (left, right, top, bottom) = (x - 9.5, x + 9.5, y - 10.0, y + 7.0);
                vec![
                    path(
                        format!("M{left:.1} {bottom:.1}L{x:.1} {top:.1}L{right:.1} {bottom:.1}Z"),
                        "head bad",
                    ),
                    path(format!("M{x:.1} {:.1}v6m0 3.4v.1", y - 4.5), "on-sign"),
                ]
            }
            Sign::Rejected => vec![
                (
                    Shape::Rect(Rect::new(x - 7.0, y - 7.0, 14.0, 14.0), 1.0),
                    "good".to_owned(),
                ),
                path(
                    format!("M{:.1} {:.1}l7 7m0 -7l-7 7", x - 3.5, y - 3.5),
                    "on-sign",
                ),
            ],
            Sign::Admitted => vec![
                disc("grey"),
                path(
                    format!("M{:.1} {:.1}l2.4 2.6l4.3 -5.2", x - 3.2, y + 0.2),
                    "on-sign",
                ),
            ],
            Sign::Unchecked => vec![disc("unchecked")],
        }
    }
}

const RULES: &[StyleRule] = &[
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

/// The style sheet of timelines.
#[must_use]
pub fn style() -> String {
    sheet(RULES, SHAPES)
}
