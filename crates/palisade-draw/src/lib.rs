//! Pictures: shapes and text in, one self-contained SVG or HTML page out.
//!
//! ```text
//!   axis   (values → x)        ┐
//!   bars   (figures → a panel) ├─► Canvas: marks and texts with coordinates ─► SVG ─► page
//!   legend (keys and words)    ┘      │
//!                                     └► Canvas::problems: text that overlaps or leaves its band
//! ```
//!
//! Nothing here reads a clock or a file: equal input gives equal bytes. The files refer to nothing outside
//! themselves. Colours follow the reader's colour scheme through a media query, see [`style`].
//!
//! Every reader's machine has other fonts, so widths are upper estimates ([`width`]), and each text is anchored to the
//! mark that it belongs to instead of following another text. [`Canvas::problems`] is for tests: it finds texts that
//! overlap or leave the band they were given.

pub mod axis;
pub mod bars;
mod canvas;
pub mod legend;
pub mod page;
pub mod style;
mod text;

pub use canvas::{Anchor, Canvas, Font, Layer, Mark, Rect, Shape, Text};
pub use text::{escape, shortened, width, wrapped};
