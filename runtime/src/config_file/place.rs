//! Where in a text something stands, and how that is shown.

use std::fmt;
use std::ops::Range;

/// A piece of one line of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// Name of the text: a file, a variable, a flag.
    pub origin: String,
    /// 1-based.
    pub line: usize,
    /// 1-based, in characters.
    pub column: usize,
    /// The whole line.
    pub text: String,
    /// Length of the piece, in characters; at least 1.
    pub width: usize,
}

impl Excerpt {
    /// The piece of `text` that `span` covers, as far as its first line goes.
    pub fn new(origin: &str, text: &str, span: &Range<usize>) -> Self {
        let start = text.floor_char_boundary(span.start.min(text.len()));
        let end = text.floor_char_boundary(span.end.clamp(start, text.len()));
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        Self {
            origin: origin.to_owned(),
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            text: text[line_start..line_end].trim_end_matches('\r').to_owned(),
            width: text[start..end.min(line_end).max(start)].chars().count().max(1),
        }
    }

    /// Writes place, line and carets, with `hint` behind the carets.
    pub fn draw(&self, f: &mut fmt::Formatter<'_>, hint: Option<&str>) -> fmt::Result {
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        // Tabs stay, so that the carets stand where the eye sees the text.
        let lead: String =
            self.text.chars().take(self.column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        writeln!(f, "{gutter}--> {}:{}:{}", self.origin, self.line, self.column)?;
        writeln!(f, "{gutter} |")?;
        writeln!(f, "{number} | {}", self.text)?;
        write!(f, "{gutter} | {lead}{}", "^".repeat(self.width))?;
        match hint {
            Some(hint) => write!(f, " {hint}"),
            None => Ok(()),
        }
    }
}
