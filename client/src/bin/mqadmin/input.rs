//! What commands read: tables of topics and groups, and messages by the line.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Read};
use std::path::{Path, PathBuf};

use crate::outcome::{Failure, Outcome};

/// A table file: a heading with the columns' names, then rows, separated by tabs. Empty lines and lines that begin
/// with `#` are skipped.
#[derive(Debug)]
pub(crate) struct TableFile {
    columns: Vec<String>,
    rows: Vec<(usize, Vec<String>)>,
    name: String,
}

/// One row of a table file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    file: &'a TableFile,
    line: usize,
    cells: &'a [String],
}

impl TableFile {
    pub(crate) fn read(path: &Path) -> Outcome<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::wrong_use(format!("{}: {error}", path.display())))?;
        Self::parse(&path.display().to_string(), &text)
    }

    fn parse(name: &str, text: &str) -> Outcome<Self> {
        let cells = |line: &str| line.split('\t').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let mut lines = text
            .lines()
            .enumerate()
            .map(|(number, line)| (number + 1, line))
            .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let Some((_, heading)) = lines.next() else {
            return Err(Failure::wrong_use(format!("{name}: no heading")));
        };
        let rows = lines.map(|(number, line)| (number, cells(line))).collect();
        Ok(Self { columns: cells(heading), rows, name: name.to_owned() })
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|(line, cells)| Row { file: self, line: *line, cells })
    }
}

impl Row<'_> {
    /// The cell of a column; `None` when there is no such column or the cell is empty.
    pub(crate) fn cell(&self, column: &str) -> Option<&str> {
        let place = self.file.columns.iter().position(|name| name == column)?;
        self.cells.get(place).map(String::as_str).filter(|cell| !cell.is_empty())
    }

    pub(crate) fn required(&self, column: &str) -> Outcome<&str> {
        self.cell(column).ok_or_else(|| self.wrong(column, "is missing"))
    }

    pub(crate) fn parsed<T>(
        &self,
        column: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Outcome<Option<T>> {
        self.cell(column).map(|cell| parse(cell).map_err(|reason| self.wrong(column, &reason))).transpose()
    }

    fn wrong(&self, column: &str, reason: &str) -> Failure {
        Failure::wrong_use(format!("{}:{}: {column}: {reason}", self.file.name, self.line))
    }
}

type Input = BufReader<Box<dyn Read + Send>>;

/// Lines of files, one after the other; of the standard input when there is no file or it is `-`.
pub(crate) struct Messages {
    files: std::vec::IntoIter<PathBuf>,
    current: Option<(String, Lines<Input>)>,
}

impl Messages {
    pub(crate) fn new(mut files: Vec<PathBuf>) -> Self {
        if files.is_empty() {
            files.push(PathBuf::from("-"));
        }
        Self { files: files.into_iter(), current: None }
    }

    fn open(path: &Path) -> Outcome<Input> {
        if path == Path::new("-") {
            return Ok(BufReader::new(Box::new(std::io::stdin())));
        }
        let file =
            File::open(path).map_err(|error| Failure::wrong_use(format!("{}: {error}", path.display())))?;
        Ok(BufReader::new(Box::new(file)))
    }
}

impl Iterator for Messages {
    type Item = Outcome<String>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((name, lines)) = &mut self.current {
                match lines.next() {
                    Some(line) => {
                        return Some(line.map_err(|error| Failure::failed(format!("{name}: {error}"))));
                    }
                    None => self.current = None,
                }
            }
            let path = self.files.next()?;
            match Self::open(&path) {
                Ok(input) => self.current = Some((path.display().to_string(), input.lines())),
                Err(failure) => return Some(Err(failure)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name() {
        let file =
            TableFile::parse("t.tsv", "name\ttype\tqueues\n# no\n\na\tFIFO\t4\nb\t\t\n").expect("a table");
        let rows: Vec<_> = file.rows().collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].cell("queues"), Some("4"));
        assert_eq!(rows[1].cell("type"), None);
        assert_eq!(rows[1].cell("else"), None);
        let wrong = rows[0].parsed("type", |_| Err::<(), _>("is unknown".into())).expect_err("refused");
        assert_eq!(wrong.to_string(), "t.tsv:4: type: is unknown");
    }

    #[test]
    fn a_file_without_a_heading_is_wrong_use() {
        assert_eq!(TableFile::parse("t.tsv", "\n").expect_err("empty").exit_code(), 2);
    }

    #[test]
    fn a_missing_file_is_wrong_use() {
        let mut messages = Messages::new(vec!["/nowhere/at/all".into()]);
        assert_eq!(messages.next().expect("an item").expect_err("no file").exit_code(), 2);
    }
}
