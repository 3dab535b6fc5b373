//! The legend: a small drawing for each sign, and the field's word for it.

use super::geometry::Rect;
use super::scene::{Layer, Mark, Shape, Sign, hatch};
use super::sign;

/// The size of a legend drawing.
pub(super) const BOX: (f64, f64) = (36.0, 18.0);

/// One entry: what is drawn and what it means.
pub(super) struct Item {
    /// The drawing, within [`BOX`].
    pub(super) marks: Vec<Mark>,
    /// Its meaning.
    pub(super) words: &'static str,
}

/// All entries in reading order.
pub(super) fn items() -> Vec<Item> {
    let bar = || Shape::Rect(Rect::new(1.0, 2.0, 34.0, 14.0), 3.0);
    let line = |class: &str| (Shape::Line((1.0, 9.0), (35.0, 9.0)), class.to_owned());
    let hatched = |step| Shape::Path(hatch(Rect::new(1.0, 2.0, 34.0, 14.0), step));
    let signed = |sign, words| item(sign::shapes(sign, (18.0, 9.0)), words);
    let step = Shape::Path("M1 14L17 14L17 4L35 4".to_owned());
    let chip = || Shape::Rect(Rect::new(6.0, 2.0, 24.0, 14.0), 7.0);
    let zigzag = Shape::Path("M1 9L6 5.5L11 12.5L16 5.5L21 12.5L26 5.5L31 12.5L35 9".to_owned());
    vec![
        item(
            vec![(bar(), "bar c0".into())],
            "lease at the lock service, with its fencing token",
        ),
        item(
            vec![(bar(), "belief c0".into())],
            "the client believes it holds the lock",
        ),
        item(
            vec![(bar(), "gap".into()), (hatched(7.0), "gap-hatch".into())],
            "it believes so, but the lease is over",
        ),
        item(
            vec![
                (bar(), "pause".into()),
                (hatched(6.0), "pause-hatch".into()),
            ],
            "client paused",
        ),
        item(vec![line("operation line-c0")], "message (thin: answer)"),
        item(
            vec![line("operation line-c0 dashed")],
            "message held up in the network",
        ),
        signed(Sign::Admit, "admit: the fence let it pass"),
        signed(Sign::Reject, "reject: the token is below the highest"),
        signed(Sign::Unchecked, "done without a check"),
        item(
            vec![(step, "fence".into())],
            "the fence’s highest token; a claim or an admitted write raises it",
        ),
        item(vec![(chip(), "chip".into())], "content of the resource"),
        item(
            vec![
                (chip(), "chip gone".into()),
                (Shape::Line((10.0, 13.0), (26.0, 5.0)), "strike".into()),
            ],
            "overwritten",
        ),
        item(
            vec![(zigzag, "zigzag".into())],
            "time drawn wider than it was; its length below",
        ),
    ]
}

/// An entry of shapes with their classes.
fn item(shapes: Vec<(Shape, String)>, words: &'static str) -> Item {
    let mark = |(shape, class)| Mark {
        event: None,
        layer: Layer::Bar,
        shape,
        class,
    };
    Item {
        marks: shapes.into_iter().map(mark).collect(),
        words,
    }
}
