//! Pictures: turns shapes and text into one self-contained SVG or HTML page.
//!
//! Internal to Palisade, without a promise of compatibility: programs use `palisade-client`, `palisade-authorities` and
//! `palisade-fence`.
//!
//! ```text
//!   axis   (values → x)        ┐
//!   bars   (figures → a panel) ├─► Canvas: marks and texts with coordinates ─► SVG ─► page
//!   legend (keys and labels)   ┘      │
//!                                     └► Canvas::problems: text that overlaps or leaves its band
//! ```
//!
//! Nothing here reads a clock or a file: equal input gives equal bytes. The output contains no external references.
//! Colours follow the reader's colour scheme through a media query, see [`style`].
//!
//! Readers have different fonts, so widths are upper estimates ([`width`]), and each text is anchored to its mark
//! instead of following another text. [`Canvas::problems`] is for tests: it finds texts that overlap or leave their
//! band.

pub mod axis;
pub mod bars;
mod canvas;
pub mod legend;
pub mod page;
pub mod style;
mod text;
pub mod timeline;

pub use canvas::{Anchor, Canvas, Layer, Rect, Shape, StyledShape, Text};
pub use text::{Font, escape, shortened, width, wrapped};
