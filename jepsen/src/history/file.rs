//! Writing a history while it happens, and reading it back.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use mq_runtime::clock::{Clock, SystemClock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::call::{self, Call};
use super::record::{self, Cause, Footer, Header, Kind, Process, Record, SCHEMA};

/// A history that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not what it should be.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// The records break a rule of histories; nothing can be concluded from them.
    #[error("record {index}: {problem}")]
    Rule {
        /// Index of the record.
        index: u64,
        /// Which rule.
        problem: String,
    },
}

impl HistoryError {
    pub(crate) fn rule(index: u64, problem: impl Into<String>) -> Self {
        Self::Rule { index, problem: problem.into() }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Header { header: Header },
    Footer { footer: Footer },
    Record(Box<Record>),
}

/// A whole history in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// First line.
    pub header: Header,
    /// Everything between.
    pub records: Vec<Record>,
    /// Last line, when the run came to its end.
    pub footer: Option<Footer>,
}

impl History {
    /// Reads a file; checks the footer's count and checksum, not yet the rules of [`History::calls`].
    pub fn read(path: &Path) -> Result<Self, HistoryError> {
        let io = |source| HistoryError::Io { path: path.to_path_buf(), source };
        let reader = BufReader::new(File::open(path).map_err(io)?);
        let (mut header, mut footer, mut records) = (None, None, Vec::new());
        let mut digest = Sha256::new();
        for (number, text) in (1u64..).zip(reader.lines()) {
            let text = text.map_err(io)?;
            let wrong = |problem: String| HistoryError::Line { line: number, problem };
            if footer.is_some() {
                return Err(wrong("a line behind the footer".into()));
            }
            match serde_json::from_str(&text).map_err(|e| wrong(format!("no line of a history: {e}")))? {
                Line::Header { header: first } if number == 1 => header = Some(first),
                Line::Header { .. } => return Err(wrong("a second header".into())),
                Line::Footer { footer: last } => footer = Some(last),
                Line::Record(record) => {
                    digest.update(text.as_bytes());
                    digest.update(b"\n");
                    records.push(*record);
                }
            }
        }
        let header = header.ok_or(HistoryError::Line { line: 1, problem: "no header".into() })?;
        if header.schema != SCHEMA {
            let problem = format!("schema {} where {SCHEMA} was expected", header.schema);
            return Err(HistoryError::Line { line: 1, problem });
        }
        check_footer(footer.as_ref(), records.len(), &hex(&digest.finalize()))?;
        Ok(Self { header, records, footer })
    }

    /// Checks the rules and pairs begins with ends.
    pub fn calls(&self) -> Result<Vec<Call>, HistoryError> {
        call::calls(&self.records)
    }
}

fn check_footer(footer: Option<&Footer>, records: usize, sha256: &str) -> Result<(), HistoryError> {
    let Some(footer) = footer else { return Ok(()) };
    let line = records as u64 + 2;
    if footer.records != records as u64 {
        let problem = format!("the footer counts {} records, there are {records}", footer.records);
        return Err(HistoryError::Line { line, problem });
    }
    if footer.sha256 != sha256 {
        let problem = format!("SHA-256 of the records is {sha256}, the footer says {}", footer.sha256);
        return Err(HistoryError::Line { line, problem });
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Takes down records from all tasks; cheap to clone. Index and time are given under one lock, so that their
/// order is the order in the file.
#[derive(Debug, Clone)]
pub struct Recorder {
    inner: Arc<Mutex<Inner>>,
    clock: Arc<SystemClock>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: BufWriter<File>,
    started: Instant,
    digest: Sha256,
    header: Header,
    records: Vec<Record>,
    failed: Option<std::io::Error>,
}

impl Recorder {
    /// Makes the file, which must not exist, and writes the header.
    pub fn create(path: &Path, header: Header) -> Result<Self, HistoryError> {
        let io = |source| HistoryError::Io { path: path.to_path_buf(), source };
        let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(io)?;
        let mut file = BufWriter::new(file);
        let line = line_of(&Line::Header { header: header.clone() }).map_err(io)?;
        file.write_all(line.as_bytes()).map_err(io)?;
        let inner = Inner {
            path: path.to_path_buf(),
            file,
            started: Instant::now(),
            digest: Sha256::new(),
            header,
            records: Vec::new(),
            failed: None,
        };
        Ok(Self { inner: Arc::new(Mutex::new(inner)), clock: Arc::new(SystemClock::new()) })
    }

    /// Adds a record and returns its index. A write error is kept and reported by [`Recorder::finish`].
    pub fn record(
        &self,
        p: Process,
        ty: Kind,
        call: record::Call,
        n: Vec<String>,
        err: Option<Cause>,
    ) -> u64 {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let i = inner.records.len() as u64;
        let t = u64::try_from(inner.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let record = Record { i, t, w: self.clock.wall_ms() * 1_000_000, p, ty, call, n, err };
        let written = line_of(&record).and_then(|line| {
            inner.digest.update(line.as_bytes());
            inner.file.write_all(line.as_bytes())
        });
        if let Err(error) = written {
            inner.failed.get_or_insert(error);
        }
        inner.records.push(record);
        i
    }

    /// A remark of the suite itself.
    pub fn remark(&self, role: record::Role, call: record::Call) {
        self.record(Process::Role(role), Kind::Info, call, Vec::new(), None);
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        u64::try_from(inner.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Writes the footer and returns the whole history.
    pub fn finish(&self, end: &str) -> Result<History, HistoryError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let footer = Footer {
            records: inner.records.len() as u64,
            duration_ns: u64::try_from(inner.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            end: end.into(),
            sha256: hex(&inner.digest.clone().finalize()),
        };
        let failed = inner.failed.take();
        let written = failed.map_or(Ok(()), Err).and_then(|()| {
            let line = line_of(&Line::Footer { footer: footer.clone() })?;
            inner.file.write_all(line.as_bytes())?;
            inner.file.flush()
        });
        written.map_err(|source| HistoryError::Io { path: inner.path.clone(), source })?;
        Ok(History {
            header: inner.header.clone(),
            records: std::mem::take(&mut inner.records),
            footer: Some(footer),
        })
    }
}

fn line_of<T: Serialize>(value: &T) -> std::io::Result<String> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::record::{Phase, Place, Role, Send};

    fn header() -> Header {
        Header {
            schema: SCHEMA,
            run: "r".into(),
            seed: 7,
            workload: "queue".into(),
            faults: vec!["kill".into()],
            topology: "ns3-b3".into(),
            groups: vec!["g".into()],
            scanners: Vec::new(),
            planned_sends: 1,
            build: "0.1.0".into(),
            command: "mqjepsen test --seed 7".into(),
        }
    }

    fn written(folder: &Path) -> (PathBuf, History) {
        let path = folder.join("history.jsonl");
        let recorder = Recorder::create(&path, header()).expect("new file");
        let send = |place| record::Call::Send(Send { mid: "r-0-0".into(), place });
        recorder.remark(Role::Harness, record::Call::Phase(Phase { name: "main".into() }));
        recorder.record(Process::Worker(0), Kind::Invoke, send(None), vec!["b1".into()], None);
        let place = Some(Place { queue: Some(1), offset: 4 });
        recorder.record(Process::Worker(0), Kind::Ok, send(place), vec!["b1".into()], None);
        let history = recorder.finish("complete").expect("writable");
        (path, history)
    }

    #[test]
    fn what_was_recorded_is_read_back() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (path, history) = written(folder.path());
        assert_eq!(History::read(&path).expect("readable"), history);
        assert_eq!(history.calls().expect("keeps the rules").len(), 1);
        assert!(Recorder::create(&path, header()).is_err(), "an old history is never overwritten");
    }

    #[test]
    fn a_changed_record_and_a_missing_line_are_noticed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (path, history) = written(folder.path());
        let text = std::fs::read_to_string(&path).expect("readable");
        let changed = folder.path().join("changed.jsonl");
        write(&changed, &text.replace("\"offset\":4", "\"offset\":5"));
        assert!(History::read(&changed).expect_err("changed").to_string().contains("SHA-256"));

        let cut = folder.path().join("cut.jsonl");
        let lines: Vec<_> = text.lines().collect();
        write(&cut, &lines[..lines.len() - 1].join("\n"));
        let read = History::read(&cut).expect("a history without footer is readable");
        assert_eq!((read.footer, read.records), (None, history.records));

        let other = folder.path().join("other.jsonl");
        write(&other, "{\"hello\":1}\n");
        assert!(History::read(&other).expect_err("no history").to_string().contains("line 1"));
    }

    fn write(path: &Path, text: &str) {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path).expect("new file");
        file.write_all(text.as_bytes()).expect("writable");
    }
}
