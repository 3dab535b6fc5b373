//! The signs of the picture, each told apart by its shape as well as by its colour.

use super::geometry::Rect;
use super::scene::{Shape, Sign};

/// The radius of a sign.
const RADIUS: f64 = 6.5;

/// The shapes of a sign around its centre, with their classes.
pub(super) fn shapes(sign: Sign, (x, y): (f64, f64)) -> Vec<(Shape, String)> {
    let r = RADIUS;
    let frame = |corner: f64| Shape::Rect(Rect::new(x - r, y - r, 2.0 * r, 2.0 * r), corner);
    let inner = |path: String| (Shape::Path(path), "sign-inner".to_owned());
    match sign {
        Sign::Admit => vec![(frame(r), "admit".to_owned()), inner(tick(x, y))],
        Sign::Reject => vec![(frame(1.0), "reject".to_owned()), inner(cross(x, y))],
        Sign::Unchecked => vec![(frame(r), "unchecked".to_owned())],
        Sign::Unknown => vec![(frame(r), "unchecked dashed".to_owned())],
        Sign::Raise => {
            let path = format!(
                "M{:.1} {:.1}L{:.1} {:.1}L{:.1} {:.1}Z",
                x - r,
                y + 5.0,
                x,
                y - 6.0,
                x + r,
                y + 5.0
            );
            vec![(Shape::Path(path), "raise".to_owned())]
        }
    }
}

/// A tick.
fn tick(x: f64, y: f64) -> String {
    format!(
        "M{:.1} {:.1}L{:.1} {:.1}L{:.1} {:.1}",
        x - 3.2,
        y + 0.2,
        x - 0.9,
        y + 2.8,
        x + 3.4,
        y - 2.6
    )
}

/// A cross.
fn cross(x: f64, y: f64) -> String {
    let (left, right, top, bottom) = (x - 3.0, x + 3.0, y - 3.0, y + 3.0);
    format!("M{left:.1} {top:.1}L{right:.1} {bottom:.1}M{right:.1} {top:.1}L{left:.1} {bottom:.1}")
}
