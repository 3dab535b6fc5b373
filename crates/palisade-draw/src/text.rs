//! Text: its font, its estimated width, its wrapping and its escaping.

/// Size and weight of a text. They are attributes of the text and not in the style sheet, because its width depends
/// on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Font {
    /// The title of a picture.
    Title,
    /// A heading.
    Heading,
    /// Ordinary text.
    Body,
    /// Ordinary text, bold.
    Strong,
    /// Small print.
    Small,
    /// Small print, bold.
    SmallStrong,
}

impl Font {
    /// Returns the size in pixels.
    #[must_use]
    pub fn size(self) -> f64 {
        match self {
            Font::Title => 22.0,
            Font::Heading => 16.0,
            Font::Body | Font::Strong => 13.0,
            Font::Small | Font::SmallStrong => 12.0,
        }
    }

    /// Whether it is bold.
    #[must_use]
    pub fn is_bold(self) -> bool {
        !matches!(self, Font::Body | Font::Small)
    }
}

/// Returns an upper estimate of the width of `text` in pixels, in any common sans-serif font. It was measured with
/// DejaVu Sans, the widest of them.
#[must_use]
pub fn width(text: &str, font: Font) -> f64 {
    let weight = if font.is_bold() { 1.12 } else { 1.0 };
    text.chars().map(char_width).sum::<f64>() * font.size() * weight
}

/// The width of a character, in em.
fn char_width(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | '·' | '’' => {
            0.35
        }
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '-' | '/' => 0.43,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '→' | '=' | '≈' | '<' | '>' | '+' => 0.99,
        'A'..='Z' => 0.78,
        c if c.is_ascii() || c == '“' || c == '”' => 0.64,
        _ => 1.05,
    }
}

/// Breaks text at spaces (not at no-break spaces) into lines of at most this width. A longer word is shortened.
#[must_use]
pub fn wrapped(text: &str, limit: f64, font: Font) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), font) <= limit => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(shortened(word, limit, font)),
        }
    }
    lines
}

/// Shortens text to this width with an ellipsis, at whole characters.
#[must_use]
pub fn shortened(text: &str, limit: f64, font: Font) -> String {
    if width(text, font) <= limit {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        if width(&format!("{short}{c}…"), font) > limit {
            break;
        }
        short.push(c);
    }
    short + "…"
}

/// Makes text safe in XML and HTML, in content and in quoted attributes. Characters that XML forbids become U+FFFD.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\t' | '\n' | '\r' => safe.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_within_the_limit_and_keep_every_word() {
        let text = "the fence keeps data safe, and incomprehensibilities short";
        let lines = wrapped(text, 90.0, Font::Body);
        assert!(lines.iter().all(|line| width(line, Font::Body) <= 90.0));
        assert!(
            lines.len() > 3
                && lines
                    .join(" ")
                    .starts_with("the fence keeps data safe, and")
        );
        assert!(lines.iter().any(|line| line.ends_with('…')), "{lines:?}");
    }

    #[test]
    fn markup_and_control_characters_are_replaced() {
        let safe = "&lt;a b=&quot;&amp;&#39;&gt; \u{fffd}";
        assert_eq!(escape("<a b=\"&'>\n\u{1}"), safe);
    }
}
