//! Pure. Server blocks and the lines in them.

use super::tokens::Token;
use super::{CorefileError, Problem};

/// A server block as written.
#[derive(Debug)]
pub(super) struct Block<'a> {
    pub(super) line: usize,
    /// Zones, with ports.
    pub(super) keys: Vec<&'a Token>,
    pub(super) lines: Vec<Line<'a>>,
}

/// A plugin or an option: its words, and the lines of the block that they open.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) line: usize,
    pub(super) words: Vec<&'a str>,
    pub(super) options: Vec<Line<'a>>,
}

pub(super) fn blocks(tokens: &[Token]) -> Result<Vec<Block<'_>>, CorefileError> {
    let mut blocks = Vec::new();
    let mut rest = tokens;
    while let Some(first) = rest.first() {
        let opens = rest.iter().position(|token| token.text == "{");
        let Some(opens) = opens.filter(|opens| *opens > 0) else {
            return Err(CorefileError::at(first.line, Problem::Misplaced { token: first.text.clone() }));
        };
        if let Some(closing) = rest[..opens].iter().find(|token| token.text == "}") {
            return Err(CorefileError::at(closing.line, Problem::Misplaced { token: closing.text.clone() }));
        }
        let keys: Vec<&Token> = rest[..opens].iter().collect();
        let mut body = &rest[opens + 1..];
        let lines = lines(&mut body, first.line)?;
        blocks.push(Block { line: first.line, keys, lines });
        rest = body;
    }
    Ok(blocks)
}

/// The lines up to the closing brace, which is taken too.
fn lines<'a>(rest: &mut &'a [Token], opened: usize) -> Result<Vec<Line<'a>>, CorefileError> {
    let mut lines = Vec::new();
    loop {
        let Some((first, after)) = rest.split_first() else {
            return Err(CorefileError::at(opened, Problem::Unfinished));
        };
        *rest = after;
        match first.text.as_str() {
            "}" => return Ok(lines),
            "{" => return Err(CorefileError::at(first.line, Problem::Misplaced { token: first.text.clone() })),
            _ => {}
        }
        let mut line = Line { line: first.line, words: vec![&first.text], options: Vec::new() };
        while let Some((next, after)) = rest.split_first() {
            if next.line != first.line || next.text == "}" {
                break;
            }
            *rest = after;
            if next.text == "{" {
                line.options = self::lines(rest, next.line)?;
                break;
            }
            line.words.push(&next.text);
        }
        lines.push(line);
    }
}
