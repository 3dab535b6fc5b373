//! Marks and texts with coordinates, and their SVG.

use std::fmt::Write as _;

use crate::text::{Font, escape, width};

/// A rectangle; y grows downwards. All lengths in this crate are pixels of an unscaled picture.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rect {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Width.
    pub w: f64,
    /// Height.
    pub h: f64,
}

impl Rect {
    /// Creates a rectangle from its upper left corner and its size.
    #[must_use]
    pub fn new(x: f64, y: f64, w: f64, h: f64) -> Rect {
        Rect { x, y, w, h }
    }

    /// Returns the right edge.
    #[must_use]
    pub fn right(&self) -> f64 {
        self.x + self.w
    }

    /// Returns the lower edge.
    #[must_use]
    pub fn bottom(&self) -> f64 {
        self.y + self.h
    }

    /// Returns the point in the middle.
    #[must_use]
    pub fn middle(&self) -> (f64, f64) {
        (self.x + self.w / 2.0, self.y + self.h / 2.0)
    }

    fn overlaps(&self, other: &Rect) -> bool {
        let across = self.x < other.right() - SLACK && other.x < self.right() - SLACK;
        across && self.y < other.bottom() - SLACK && other.y < self.bottom() - SLACK
    }

    fn contains(&self, other: &Rect) -> bool {
        let across = self.x <= other.x + SLACK && other.right() <= self.right() + SLACK;
        across && self.y <= other.y + SLACK && other.bottom() <= self.bottom() + SLACK
    }
}

/// An overlap below this is a rounding error.
const SLACK: f64 = 0.1;

/// The layers: a later layer covers an earlier one, and text covers all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// Backgrounds and grids.
    Ground,
    /// Lines between marks; bars cover them.
    Line,
    /// Bars.
    Bar,
    /// Signs.
    Sign,
}

/// A geometric shape.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A straight line between two points.
    Line((f64, f64), (f64, f64)),
    /// A rectangle with rounded corners of this radius.
    Rect(Rect, f64),
    /// A circle: centre and radius.
    Circle((f64, f64), f64),
    /// SVG path data. It is written unescaped and must never come from input.
    Path(String),
}

/// A shape and its style.
#[derive(Clone, Debug, PartialEq)]
pub struct StyledShape {
    /// The shape.
    pub shape: Shape,
    /// CSS classes, see [`crate::style`].
    pub class: String,
    /// Its layer.
    pub layer: Layer,
    /// The number of its note.
    pub note: Option<usize>,
}

/// The end of a text that stays in place if a font is wider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The left end.
    Start,
    /// The middle.
    Middle,
    /// The right end.
    End,
}

/// A line of text.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// The text, not escaped.
    pub text: String,
    /// CSS classes.
    pub class: String,
    /// The position of the anchor, at half the height of the line.
    pub at: (f64, f64),
    /// The anchored end.
    pub anchor: Anchor,
    /// Size and weight.
    pub font: Font,
    /// The area that it must not leave; `None` for the whole canvas.
    pub band: Option<Rect>,
    /// The number of its note.
    pub note: Option<usize>,
}

impl Text {
    /// Returns the area reserved for it.
    #[must_use]
    pub fn area(&self) -> Rect {
        let (w, h) = (width(&self.text, self.font), self.font.size() * 1.2);
        let x = match self.anchor {
            Anchor::Start => self.at.0,
            Anchor::Middle => self.at.0 - w / 2.0,
            Anchor::End => self.at.0 - w,
        };
        Rect::new(x, self.at.1 - h / 2.0, w, h)
    }
}

/// A picture under construction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Canvas {
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
    /// All shapes.
    pub marks: Vec<StyledShape>,
    /// All texts.
    pub texts: Vec<Text>,
    /// Pictures inside this one, with their positions.
    pub parts: Vec<(f64, f64, Canvas)>,
    /// Tooltips of marks and texts.
    notes: Vec<String>,
    /// The note of the next marks and texts.
    note: Option<usize>,
}

impl Canvas {
    /// Creates an empty picture.
    #[must_use]
    pub fn new(width: f64, height: f64) -> Canvas {
        Canvas {
            width,
            height,
            ..Canvas::default()
        }
    }

    /// Adds a note, which readers see as a tooltip; returns its number, counted from 0.
    pub fn note(&mut self, text: impl Into<String>) -> usize {
        self.notes.push(text.into());
        self.notes.len() - 1
    }

    /// Selects the note of the marks and texts that are drawn from now on.
    pub fn about(&mut self, note: Option<usize>) {
        self.note = note;
    }

    /// Adds a shape.
    pub fn mark(&mut self, layer: Layer, shape: Shape, class: impl Into<String>) {
        let (class, note) = (class.into(), self.note);
        self.marks.push(StyledShape {
            shape,
            class,
            layer,
            note,
        });
    }

    /// Adds a rectangle with rounded corners of this radius.
    pub fn rect(&mut self, layer: Layer, rect: Rect, corner: f64, class: impl Into<String>) {
        self.mark(layer, Shape::Rect(rect, corner), class);
    }

    /// Adds a straight line.
    pub fn line(&mut self, layer: Layer, a: (f64, f64), b: (f64, f64), class: impl Into<String>) {
        self.mark(layer, Shape::Line(a, b), class);
    }

    /// Fills a rectangle with diagonal strokes. It is not an SVG pattern, because the ids of patterns clash in a page.
    pub fn hatch(&mut self, layer: Layer, rect: Rect, step: f64, class: impl Into<String>) {
        let (mut path, mut start) = (String::new(), rect.x - rect.h);
        while start < rect.right() {
            let (low, high) = (start.max(rect.x), (start + rect.h).min(rect.right()));
            if high > low {
                let (from, to) = (rect.bottom() - low + start, rect.bottom() - high + start);
                // Writing to a String cannot fail, here and below.
                let _ = write!(path, "M{low:.1} {from:.1}L{high:.1} {to:.1}");
            }
            start += step;
        }
        self.mark(layer, Shape::Path(path), class);
    }

    /// Adds a line of text with its anchor at this point, at half the height of the line.
    pub fn text(
        &mut self,
        at: (f64, f64),
        anchor: Anchor,
        font: Font,
        text: &str,
        class: impl Into<String>,
    ) {
        let (text, class, note) = (text.to_owned(), class.into(), self.note);
        self.texts.push(Text {
            text,
            class,
            at,
            anchor,
            font,
            band: None,
            note,
        });
    }

    /// Adds a line of text in the middle of a band that it must not leave.
    pub fn text_within(&mut self, band: Rect, font: Font, text: &str, class: impl Into<String>) {
        self.text(band.middle(), Anchor::Middle, font, text, class);
        if let Some(text) = self.texts.last_mut() {
            text.band = Some(band);
        }
    }

    /// Adds a picture inside this one.
    pub fn part(&mut self, x: f64, y: f64, part: Canvas) {
        self.parts.push((x, y, part));
    }

    /// Returns the problems of the layout: each pair of texts that overlap, and each text that leaves its band or the
    /// picture.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let whole = Rect::new(0.0, 0.0, self.width, self.height);
        for (number, text) in self.texts.iter().enumerate() {
            let area = text.area();
            let overlapped = |other: &&Text| area.overlaps(&other.area());
            for other in self.texts[number + 1..].iter().filter(overlapped) {
                problems.push(format!("“{}” overlaps “{}”", text.text, other.text));
            }
            if !whole.contains(&area) || text.band.is_some_and(|band| !band.contains(&area)) {
                problems.push(format!("“{}” leaves its band: {area:?}", text.text));
            }
        }
        problems.extend(self.parts.iter().flat_map(|(_, _, part)| part.problems()));
        problems
    }

    /// Returns an SVG file with this style sheet. Screen readers read the label.
    #[must_use]
    pub fn to_svg(&self, style: &str, label: &str) -> String {
        let (w, h, label) = (self.width, self.height, escape(label));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"draw\" viewBox=\"0 0 {w:.0} {h:.0}\" width=\"{w:.0}\" \
             height=\"{h:.0}\" role=\"img\" aria-label=\"{label}\"><style>{style}</style>\n<rect class=\"paper\" \
             width=\"{w:.0}\" height=\"{h:.0}\"/>{}</svg>\n",
            self.body()
        )
    }

    /// Returns an SVG element for a page that has the style sheet. Without a label, it is hidden from screen readers.
    #[must_use]
    pub fn to_inline(&self, class: &str, label: &str) -> String {
        let (w, h) = (self.width, self.height);
        let role = match label {
            "" => "aria-hidden=\"true\"".to_owned(),
            label => format!("role=\"img\" aria-label=\"{}\"", escape(label)),
        };
        format!(
            "<svg class=\"draw {class}\" viewBox=\"0 0 {w:.0} {h:.0}\" {role}>{}</svg>",
            self.body()
        )
    }

    fn body(&self) -> String {
        let mut out = String::new();
        let mut marks: Vec<&StyledShape> = self.marks.iter().collect();
        marks.sort_by_key(|mark| mark.layer);
        for group in marks.chunk_by(|a, b| (a.layer, a.note) == (b.layer, b.note)) {
            let note = group.first().and_then(|mark| mark.note);
            let shapes: String = group.iter().map(|mark| shape(mark)).collect();
            self.group(&mut out, note, &shapes);
        }
        for group in self.texts.chunk_by(|a, b| a.note == b.note) {
            let note = group.first().and_then(|text| text.note);
            let words: String = group.iter().map(line_of_text).collect();
            self.group(&mut out, note, &words);
        }
        for (x, y, part) in &self.parts {
            let _ = write!(
                out,
                "\n<g transform=\"translate({x:.1} {y:.1})\">{}</g>",
                part.body()
            );
        }
        out
    }

    fn group(&self, out: &mut String, note: Option<usize>, inner: &str) {
        let _ = match note.and_then(|number| Some((number, self.notes.get(number)?))) {
            Some((number, words)) => write!(
                out,
                "\n<g data-event=\"{number}\"><title>{}</title>{inner}</g>",
                escape(words)
            ),
            None => write!(out, "\n{inner}"),
        };
    }
}

fn shape(mark: &StyledShape) -> String {
    let class = &mark.class;
    match &mark.shape {
        Shape::Line(a, b) => format!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            a.0, a.1, b.0, b.1
        ),
        Shape::Rect(r, corner) => format!(
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"{corner:.1}\"/>",
            r.x,
            r.y,
            r.w.max(0.0),
            r.h.max(0.0)
        ),
        Shape::Circle(c, r) => format!(
            "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{r:.1}\"/>",
            c.0, c.1
        ),
        Shape::Path(data) => format!("<path class=\"{class}\" d=\"{data}\"/>"),
    }
}

/// The baseline is computed: renderers disagree about `dominant-baseline`.
fn line_of_text(text: &Text) -> String {
    let anchor = match text.anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    let weight = if text.font.is_bold() {
        " font-weight=\"600\""
    } else {
        ""
    };
    let size = text.font.size();
    format!(
        "<text class=\"{}\" x=\"{:.1}\" y=\"{:.1}\" font-size=\"{size}\"{weight}{anchor}>{}</text>",
        text.class,
        text.at.0,
        text.at.1 + size * 0.35,
        escape(&text.text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(second: (f64, f64)) -> Canvas {
        let mut canvas = Canvas::new(200.0, 60.0);
        canvas.text((10.0, 20.0), Anchor::Start, Font::Body, "first", "");
        canvas.text(second, Anchor::Start, Font::Body, "second", "");
        canvas
    }

    #[test]
    fn texts_that_overlap_or_leave_their_band_are_found() {
        assert_eq!(two((100.0, 20.0)).problems(), Vec::<String>::new());
        assert_eq!(two((30.0, 24.0)).problems(), ["“first” overlaps “second”"]);
        assert!(two((180.0, 20.0)).problems()[0].starts_with("“second” leaves its band"));
        let mut banded = two((100.0, 20.0));
        banded.text_within(
            Rect::new(0.0, 40.0, 20.0, 16.0),
            Font::Body,
            "a long word",
            "",
        );
        assert!(banded.problems()[0].starts_with("“a long word” leaves its band"));
        let mut whole = Canvas::new(400.0, 400.0);
        whole.part(10.0, 10.0, banded);
        assert_eq!(whole.problems().len(), 1, "parts are checked, too");
    }

    #[test]
    fn the_area_of_a_text_follows_its_anchor() {
        let mut canvas = Canvas::new(100.0, 100.0);
        for anchor in [Anchor::Start, Anchor::Middle, Anchor::End] {
            canvas.text((50.0, 50.0), anchor, Font::Body, "abc", "");
        }
        let w = width("abc", Font::Body);
        let left: Vec<f64> = canvas.texts.iter().map(|text| text.area().x).collect();
        assert_eq!(left, [50.0, 50.0 - w / 2.0, 50.0 - w]);
    }

    #[test]
    fn later_layers_are_written_later_and_notes_are_escaped() {
        let mut canvas = Canvas::new(10.0, 10.0);
        let note = canvas.note("<b>");
        canvas.about(Some(note));
        canvas.rect(Layer::Sign, Rect::new(0.0, 0.0, 1.0, 1.0), 0.0, "upper");
        canvas.rect(Layer::Ground, Rect::new(0.0, 0.0, 1.0, 1.0), 0.0, "lower");
        let svg = canvas.to_svg("", "a & b");
        assert!(svg.find("lower") < svg.find("upper"));
        assert!(svg.contains("<g data-event=\"0\"><title>&lt;b&gt;</title>"));
        assert!(svg.contains("aria-label=\"a &amp; b\"") && svg.ends_with("</svg>\n"));
    }
}
