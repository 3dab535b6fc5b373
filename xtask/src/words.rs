//! The glossary's words have one meaning each; this table lists what we decided not to say instead.
//!
//! Looked at: pages (`.md`) and doc comments, without code spans, code blocks and "quotations"; and, for rows that
//! say so, the identifiers of Rust code. Words separated by a space, a hyphen or a line end count as neighbours.

use crate::source::{File, Tree};
use crate::tidy::Finding;

struct Row {
    /// The words to avoid: lower case, separated by single spaces.
    not: &'static [&'static str],
    say: &'static str,
    why: &'static str,
    wherever: Place,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Pages and doc comments.
    Prose,
    /// Also identifiers: `fence token` forbids `fence_token` and `FenceToken` too.
    ProseAndNames,
    /// Pages for users only: internals may have a real one.
    Pages,
}

const ROWS: &[Row] = &[
    Row {
        not: &[
            "fence token",
            "fence tokens",
            "fencing number",
            "fencing numbers",
            "fence number",
        ],
        say: "fencing token",
        why: "one name for the number that only grows",
        wherever: Place::ProseAndNames,
    },
    Row {
        not: &["lock token", "lock tokens", "lease token", "lease tokens"],
        say: "lease key, `lock_token` on the wire, or fencing token if the number is meant",
        why: "the secret that renews and the number for the resource are never mixed",
        wherever: Place::Prose,
    },
    Row {
        not: &[
            "lock epoch",
            "lease epoch",
            "fencing epoch",
            "epoch token",
            "token epoch",
        ],
        say: "fencing token",
        why: "epochs belong to the systems we talk to",
        wherever: Place::ProseAndNames,
    },
    Row {
        not: &["mutex", "mutexes"],
        say: "lock",
        why: "a mutex excludes; a lease only says for how long it would like to",
        wherever: Place::Pages,
    },
    Row {
        not: &["slave", "slaves", "master node", "master server"],
        say: "leader and follower, primary and replica",
        why: "plain words that say what each does",
        wherever: Place::ProseAndNames,
    },
    Row {
        not: &["unlock", "unlocks", "unlocked", "unlocking"],
        say: "release",
        why: "a grant is released, a lease expires, an operator revokes",
        wherever: Place::Prose,
    },
    Row {
        not: &[
            "expired lock",
            "expired locks",
            "lock expires",
            "lock expired",
            "locks expire",
        ],
        say: "expired lease, the lease expires",
        why: "a lock is a name and has no time; the lease has",
        wherever: Place::Prose,
    },
    Row {
        not: &["lock owner", "lock owners", "owner of the lock"],
        say: "holder",
        why: "one word for the lease that has the lock",
        wherever: Place::ProseAndNames,
    },
];

/// Every place that uses a word the project decided against.
pub(crate) fn findings(tree: &Tree) -> Vec<Finding> {
    tree.files
        .iter()
        .flat_map(|file| ROWS.iter().flat_map(|row| row_findings(row, file)))
        .collect()
}

fn row_findings(row: &Row, file: &File) -> Vec<Finding> {
    let page = file.has_ending(&["md"]);
    let mut lines = Vec::new();
    if page || row.wherever != Place::Pages {
        let prose = without_quotations(&crate::tidy::prose(if page {
            file.text()
        } else {
            file.docs()
        }));
        let words = words(&prose);
        for not in row.not {
            lines.extend(phrases(&words, not).map(|line| (line, (*not).to_owned())));
        }
    }
    if row.wherever == Place::ProseAndNames {
        for not in row.not {
            for name in identifiers(not) {
                let hits = file.code_lines().filter(|(_, code)| code.contains(&name));
                lines.extend(hits.map(|(line, _)| (line, name.clone())));
            }
        }
    }
    lines.sort_unstable();
    let say = |(line, not): (usize, String)| {
        Finding::new(
            &file.path,
            line,
            format!("\"{not}\": say {} ({})", row.say, row.why),
        )
    };
    lines.into_iter().map(say).collect()
}

struct Word {
    line: usize,
    lower: String,
    /// Is it next to the word before, with nothing but white space or a hyphen between?
    follows: bool,
}

fn words(prose: &str) -> Vec<Word> {
    let mut found: Vec<Word> = Vec::new();
    let (mut line, mut between, mut current) = (1, String::new(), String::new());
    for letter in prose.chars().chain(['\n']) {
        if letter.is_alphanumeric() || letter == '_' {
            current.push(letter);
            continue;
        }
        if !current.is_empty() {
            let follows = between.trim().is_empty() || between == "-";
            found.push(Word {
                line,
                lower: std::mem::take(&mut current).to_lowercase(),
                follows,
            });
            between.clear();
        }
        between.push(letter);
        line += usize::from(letter == '\n');
    }
    found
}

/// The lines at which this phrase starts.
fn phrases(words: &[Word], phrase: &str) -> impl Iterator<Item = usize> {
    let wanted: Vec<&str> = phrase.split(' ').collect();
    words.windows(wanted.len()).filter_map(move |window| {
        let same = window
            .iter()
            .zip(&wanted)
            .all(|(word, wanted)| word.lower == *wanted);
        (same && window.iter().skip(1).all(|word| word.follows)).then(|| window[0].line)
    })
}

/// A phrase as names in code: `fence_token`, `FenceToken`, `FENCE_TOKEN`. Single words stay prose.
fn identifiers(phrase: &str) -> Vec<String> {
    let parts: Vec<&str> = phrase.split(' ').collect();
    if parts.len() != 2 || phrase.ends_with('s') {
        return Vec::new();
    }
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    let snake = parts.join("_");
    vec![
        snake.to_uppercase(),
        parts.iter().map(|word| capital(word)).collect(),
        snake,
    ]
}

/// Blanks "what stands in quotation marks" on one line.
fn without_quotations(prose: &str) -> String {
    let mut clean = String::with_capacity(prose.len());
    for line in prose.lines() {
        let mut open = false;
        let pairs = line.matches('"').count() / 2 * 2;
        let mut seen = 0;
        for letter in line.chars() {
            let straight = letter == '"' && seen < pairs;
            seen += usize::from(straight);
            let closes = letter == '”' || (straight && open);
            let opens = letter == '“' || (straight && !open);
            open = (open || opens) && !closes;
            // A mark is no white space: words on both sides of a quotation are not neighbours.
            clean.push(if opens || closes {
                '"'
            } else if open {
                ' '
            } else {
                letter
            });
        }
        clean.push('\n');
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        findings(&Tree::of(&[(path, text)]))
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn every_row_finds_each_of_its_phrases_and_not_its_own_advice() {
        for row in ROWS {
            for not in row.not {
                assert_eq!(
                    row_findings(row, &page(&format!("a {not} b\n"))).len(),
                    1,
                    "{not}"
                );
                assert!(
                    row_findings(row, &page(&format!("a `{not}` b \"{not}\" “{not}” c\n")))
                        .is_empty(),
                    "{not}"
                );
            }
            assert_eq!(
                found("a.md", &format!("{}\n", row.say)),
                [0; 0],
                "{}",
                row.say
            );
        }
    }

    fn page(text: &str) -> File {
        File::new("a.md", Some(text.to_owned()))
    }

    #[test]
    fn prose_is_pages_and_doc_comments_without_code() {
        for (path, text, lines) in [
            ("a.md", "The Fence\nToken and a fence-token.\n", vec![1, 2]),
            ("a.md", "```\nunlock\n```\nunlock\n", vec![4]),
            ("a.md", "a fence, token by token\n", vec![]),
            ("a.md", "an \"odd inch and unlock\n", vec![1]),
            ("a.rs", "/// unlock it\nfn a() {}\n", vec![1]),
            ("a.rs", "// unlock it\nfn unlock() {}\n", vec![]),
            (
                "a.rs",
                "/// ```\n/// unlock();\n/// ```\nfn a() {}\n",
                vec![],
            ),
            ("a.txt", "unlock\n", vec![]),
        ] {
            assert_eq!(found(path, text), lines, "{text}");
        }
    }

    #[test]
    fn a_row_may_cover_names_in_code() {
        assert_eq!(
            found(
                "a.rs",
                "let fence_token = 1;\nstruct FenceToken;\nlet fencing_token = \"fence_token\";\n"
            ),
            [1, 2]
        );
        assert_eq!(
            found("a.rs", "let lock_token = 1;\n"),
            [0; 0],
            "the name on the wire is no mistake"
        );
    }

    #[test]
    fn the_mutex_row_leaves_internals_alone() {
        assert_eq!(found("a.rs", "/// Behind a mutex.\nfn a() {}\n"), [0; 0]);
        assert_eq!(found("docs/a.md", "Behind a mutex.\n"), [1]);
    }
}
