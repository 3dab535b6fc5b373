//! Words of a shell.

/// Quotes text as one shell word.
pub(crate) fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_word_stays_one_word() {
        assert_eq!(shell_word("it's $HOME `x`"), r"'it'\''s $HOME `x`'");
    }
}
