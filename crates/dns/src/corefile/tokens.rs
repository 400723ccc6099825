//! Pure. Words of a Corefile with their lines: separated by blanks, `"` around words with blanks, `#` before comments.

use super::{CorefileError, Problem};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
}

pub(super) fn tokens(text: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Vec<Token>, CorefileError> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut characters = text.chars().peekable();
    while let Some(first) = characters.next() {
        match first {
            '\n' => line += 1,
            _ if first.is_whitespace() || first == '\u{feff}' => {}
            '#' => while characters.next_if(|next| *next != '\n').is_some() {},
            '"' => {
                let began = line;
                let mut word = String::new();
                loop {
                    match characters.next() {
                        None => return Err(CorefileError::at(began, Problem::Unfinished)),
                        Some('"') => break,
                        Some('\\') if characters.peek() == Some(&'"') => word.extend(characters.next()),
                        Some(other) => {
                            line += usize::from(other == '\n');
                            word.push(other);
                        }
                    }
                }
                tokens.push(Token { text: substituted(&word, &environment), line: began });
            }
            _ => {
                let mut word = String::from(first);
                while let Some(next) = characters.next_if(|next| !next.is_whitespace()) {
                    word.push(next);
                }
                tokens.push(Token { text: substituted(&word, &environment), line });
            }
        }
    }
    Ok(tokens)
}

/// `{$NAME}` and `{%NAME%}` become the variable's value; one that is not set is empty.
fn substituted(word: &str, environment: impl Fn(&str) -> Option<String>) -> String {
    let mut text = word.to_owned();
    for (open, close) in [("{$", "}"), ("{%", "%}")] {
        let mut from = 0;
        while let Some(at) = text[from..].find(open).map(|at| from + at) {
            let Some(end) = text[at..].find(close).map(|end| at + end) else { break };
            let value = environment(&text[at + open.len()..end]).unwrap_or_default();
            text.replace_range(at..end + close.len(), &value);
            from = at + value.len();
        }
    }
    text
}
