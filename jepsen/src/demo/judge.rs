//! Compares what was sent with what came. Pure.

use std::collections::BTreeMap;

/// One line of the file, sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Line number, from 1.
    pub line: u64,
    /// When the send began, ns since the start.
    pub begin: u64,
    /// When its outcome was known.
    pub end: u64,
    /// What came back.
    pub outcome: Outcome,
}

/// Outcome of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Confirmed at this place.
    Confirmed {
        /// Queue, when the answer named it.
        queue: Option<u32>,
        /// Queue offset.
        offset: u64,
    },
    /// Certainly not stored, in words.
    NotStored(String),
    /// Unknown, in words.
    Unknown(String),
}

/// One delivery, in the order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Came {
    /// Line number and text are those of the file; `None` for a message that is not.
    pub line: Option<u64>,
    /// Queue.
    pub queue: u32,
    /// Queue offset.
    pub offset: u64,
    /// Delivery attempt.
    pub attempt: u32,
}

/// What the comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Judgement {
    /// Lines whose send was confirmed.
    pub confirmed: u64,
    /// Lines whose send was not confirmed in spite of all repeats.
    pub unconfirmed: u64,
    /// Confirmed lines that never came.
    pub lost: u64,
    /// Messages that are no line of the file, or a line that was certainly not stored.
    pub invented: u64,
    /// Pairs in the wrong order.
    pub reordered: u64,
    /// Deliveries of a line after its first.
    pub duplicates: u64,
    /// Longest pause between two neighbouring confirmations in ns, and when it began.
    pub longest_gap: Option<(u64, u64)>,
    /// The first few problems in words.
    pub problems: Vec<String>,
}

impl Judgement {
    /// True when nothing is lost, invented, reordered or left unconfirmed.
    pub fn good(&self) -> bool {
        [self.lost, self.invented, self.reordered, self.unconfirmed].iter().all(|count| *count == 0)
    }

    fn problem(&mut self, text: String) {
        if self.problems.len() < 10 {
            self.problems.push(text);
        }
    }
}

/// Compares. `sent` holds every line once.
pub fn judge(sent: &[Sent], came: &[Came]) -> Judgement {
    let mut result = Judgement::default();
    let mut first: BTreeMap<u64, &Came> = BTreeMap::new();
    let by_line: BTreeMap<u64, &Sent> = sent.iter().map(|sent| (sent.line, sent)).collect();
    for delivery in came {
        let known = delivery.line.and_then(|line| by_line.get(&line).map(|sent| (line, *sent)));
        let Some((line, sent)) = known else {
            result.invented += 1;
            result.problem(format!("queue {} offset {} holds no line", delivery.queue, delivery.offset));
            continue;
        };
        if let Outcome::NotStored(why) = &sent.outcome {
            result.invented += 1;
            result.problem(format!("line {line} came, but its send had failed: {why}"));
        }
        let mut repeated = true;
        first.entry(line).or_insert_with(|| {
            repeated = false;
            delivery
        });
        result.duplicates += u64::from(repeated);
    }
    for sent in sent {
        match &sent.outcome {
            Outcome::Confirmed { queue, offset } => {
                result.confirmed += 1;
                match first.get(&sent.line) {
                    None => {
                        result.lost += 1;
                        result.problem(format!(
                            "line {} was confirmed at offset {offset} and never came",
                            sent.line
                        ));
                    }
                    Some(came)
                        if came.offset != *offset || queue.is_some_and(|queue| queue != came.queue) =>
                    {
                        result.reordered += 1;
                        let (was, told) = (came.offset, offset);
                        result.problem(format!(
                            "line {} was confirmed at offset {told} and came from {was}",
                            sent.line
                        ));
                    }
                    Some(_) => {}
                }
            }
            Outcome::NotStored(why) | Outcome::Unknown(why) => {
                result.unconfirmed += 1;
                result.problem(format!("line {} was not confirmed: {why}", sent.line));
            }
        }
    }
    order_of_sends(sent, &first, &mut result);
    order_of_deliveries(came, &mut result);
    result.longest_gap = longest_gap(sent);
    result
}

/// If A was confirmed before B of the same queue began, A has the smaller offset.
fn order_of_sends(sent: &[Sent], first: &BTreeMap<u64, &Came>, result: &mut Judgement) {
    let mut queues: BTreeMap<u32, Vec<(&Sent, u64)>> = BTreeMap::new();
    for sent in sent {
        if let Outcome::Confirmed { queue, offset } = sent.outcome
            && let Some(queue) = queue.or_else(|| first.get(&sent.line).map(|came| came.queue))
        {
            queues.entry(queue).or_default().push((sent, offset));
        }
    }
    for (queue, mut sends) in queues {
        let mut ended = sends.clone();
        sends.sort_by_key(|(sent, _)| sent.begin);
        ended.sort_by_key(|(sent, _)| sent.end);
        let mut ended = ended.into_iter().peekable();
        let mut largest: Option<(&Sent, u64)> = None;
        for (sent, offset) in sends {
            while let Some(before) = ended.next_if(|(before, _)| before.end < sent.begin) {
                if largest.is_none_or(|(_, most)| before.1 > most) {
                    largest = Some(before);
                }
            }
            if let Some((before, most)) = largest
                && offset <= most
            {
                result.reordered += 1;
                let (line, other) = (sent.line, before.line);
                result.problem(format!(
                    "queue {queue}: line {line} has offset {offset}, line {other}, confirmed before, has {most}"
                ));
            }
        }
    }
}

/// First deliveries of a queue rise: one consumer asks, one answer after the other.
fn order_of_deliveries(came: &[Came], result: &mut Judgement) {
    let mut last: BTreeMap<u32, u64> = BTreeMap::new();
    for delivery in came.iter().filter(|delivery| delivery.attempt == 1) {
        let before = last.insert(delivery.queue, delivery.offset);
        if let Some(before) = before.filter(|before| *before >= delivery.offset) {
            result.reordered += 1;
            let (queue, offset) = (delivery.queue, delivery.offset);
            result.problem(format!("queue {queue}: offset {offset} was first delivered after {before}"));
        }
    }
}

/// (length, begin) of the longest pause between two neighbouring confirmations.
pub fn longest_gap(sent: &[Sent]) -> Option<(u64, u64)> {
    let confirmed = sent.iter().filter(|sent| matches!(sent.outcome, Outcome::Confirmed { .. }));
    let mut ends: Vec<u64> = confirmed.map(|sent| sent.end).collect();
    ends.sort_unstable();
    ends.windows(2).map(|pair| (pair[1] - pair[0], pair[0])).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(line: u64, begin: u64, end: u64, offset: u64) -> Sent {
        Sent { line, begin, end, outcome: Outcome::Confirmed { queue: Some(0), offset } }
    }

    fn came(line: u64, offset: u64) -> Came {
        Came { line: Some(line), queue: 0, offset, attempt: 1 }
    }

    fn three() -> (Vec<Sent>, Vec<Came>) {
        let sent = vec![sent(1, 0, 10, 0), sent(2, 20, 30, 1), sent(3, 90, 100, 2)];
        (sent, vec![came(1, 0), came(2, 1), came(3, 2)])
    }

    #[test]
    fn everything_once_in_order_is_good() {
        let (sent, came) = three();
        let result = judge(&sent, &came);
        assert!(result.good(), "{result:?}");
        assert_eq!((result.confirmed, result.duplicates, result.longest_gap), (3, 0, Some((70, 30))));
    }

    #[test]
    fn a_missing_line_is_lost() {
        let (sent, mut came) = three();
        came.remove(1);
        let result = judge(&sent, &came);
        assert_eq!((result.lost, result.good()), (1, false));
        assert!(result.problems[0].contains("line 2"));
    }

    #[test]
    fn foreign_messages_and_failed_sends_are_invented() {
        let (mut sent, mut came) = three();
        came.push(Came { line: None, queue: 0, offset: 3, attempt: 1 });
        sent[0].outcome = Outcome::NotStored("42900".into());
        let result = judge(&sent, &came);
        assert_eq!((result.invented, result.unconfirmed), (2, 1));
    }

    #[test]
    fn a_second_delivery_is_counted_and_allowed() {
        let (sent, mut came) = three();
        came.push(Came { attempt: 2, ..came[0].clone() });
        let result = judge(&sent, &came);
        assert!(result.good());
        assert_eq!(result.duplicates, 1);
    }

    #[test]
    fn an_unknown_send_may_come_or_not_but_is_not_confirmed() {
        let (mut sent, came) = three();
        sent[2].outcome = Outcome::Unknown("deadline".into());
        let result = judge(&sent, &came[..2]);
        assert_eq!((result.lost, result.invented, result.unconfirmed, result.good()), (0, 0, 1, false));
    }

    #[test]
    fn offsets_against_the_order_of_sends_are_reordered() {
        let sends = [sent(1, 0, 10, 1), sent(2, 20, 30, 0)];
        assert_eq!(judge(&sends, &[came(2, 0), came(1, 1)]).reordered, 1);
        let concurrent = [sent(1, 0, 25, 1), sent(2, 20, 30, 0)];
        assert_eq!(judge(&concurrent, &[came(2, 0), came(1, 1)]).reordered, 0);
    }

    #[test]
    fn falling_first_deliveries_and_wrong_places_are_reordered() {
        let (sent, mut deliveries) = three();
        deliveries.swap(0, 1);
        assert_eq!(judge(&sent, &deliveries).reordered, 1);
        let (sent, mut deliveries) = three();
        deliveries[2].offset = 7;
        assert_eq!(judge(&sent, &deliveries).reordered, 1);
    }
}
