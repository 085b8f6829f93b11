//! Hands messages over until each has its outcome.
//!
//! What always holds: a message keeps its sequence; it is repeated only under it and only to its broker group; its
//! sequence holds the floor back until its outcome is final; it counts as not stored only when every hand-over
//! ended with that certainty.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mq_protocol::headers::ProducerNumbers;
use mq_protocol::{headers, v2};
use tokio::time::Instant;

use super::Shared;
use super::lane::{Lane, Pending};
use crate::error::{Cause, NotStored};
use crate::outcome::{Beside, Verdict, cause, code, is_about_content, status_of};
use crate::pursuit::{Attempt, MessagingClient, Patience, Pursuit};

const PATIENCE: Patience =
    Patience { attempt: Duration::from_secs(3), doubt_after: Duration::from_millis(300) };
/// Answers to a sequence that the server no longer knows or to a producer that was replaced: a repeat says the same.
const FINAL_REASONS: [&str; 2] = [headers::REASON_BELOW_FLOOR, headers::REASON_OLDER_EPOCH];

/// What to do before the next hand-over.
enum Next {
    Now,
    Pause,
    Follow(Beside),
}

/// Sends a request's messages; those that the window has no room for go back to the lane.
pub(crate) async fn deliver(producer: &Arc<Shared>, lane: &Lane, request: Vec<Pending>) {
    let (first, granted) = lane.window.take(request.len()).await;
    let mut delivery = Delivery {
        producer,
        lane,
        outstanding: VecDeque::with_capacity(granted),
        request_max: usize::MAX,
        last: Cause::Closed,
    };
    delivery.number(first, granted, request);
    delivery.run().await;
}

struct Delivery<'a> {
    producer: &'a Arc<Shared>,
    lane: &'a Lane,
    /// By rising sequence.
    outstanding: VecDeque<(u64, Pending)>,
    /// Messages per request; 1 after a refusal that may concern one of several only.
    request_max: usize,
    last: Cause,
}

impl Delivery<'_> {
    /// Gives sequences to the messages whose senders still wait.
    fn number(&mut self, first: u64, granted: usize, request: Vec<Pending>) {
        let now = Instant::now();
        let mut messages = request.into_iter();
        while self.outstanding.len() < granted {
            let Some(pending) = messages.next() else { break };
            if pending.take(now) {
                self.outstanding.push_back((first + self.outstanding.len() as u64, pending));
            }
        }
        for unused in self.outstanding.len()..granted {
            self.lane.window.settle(first + unused as u64);
        }
        self.lane.put_back(messages.collect());
    }

    async fn run(mut self) {
        let core = &self.producer.core;
        let mut pursuit = Pursuit::new(core, &self.lane.group, &self.lane.topic);
        loop {
            self.expire();
            let mut request = self.next_request();
            let Some(deadline) = request.iter().map(|(_, pending)| pending.deadline).min() else { return };
            let body = v2::SendMessageRequest {
                messages: request.iter().map(|(_, pending)| pending.wire.clone()).collect(),
            };
            let numbers = self.numbers(request.first().map_or(0, |(sequence, _)| *sequence));
            let call = |mut client: MessagingClient, time: Duration| {
                let mut request = core.identity.request(body, time);
                crate::identity::put(request.metadata_mut(), headers::NO_FORWARD, "1");
                crate::identity::put(request.metadata_mut(), headers::PRODUCER, &numbers.to_string());
                async move { client.send_message(request).await }
            };
            match pursuit.attempt(deadline, PATIENCE, call).await {
                Attempt::Answer(response) => {
                    count_attempt(&mut request);
                    let beside = Beside::read(response.metadata());
                    match self.settle(request, response.into_inner(), beside) {
                        Next::Now => {}
                        Next::Pause => pursuit.pause(deadline).await,
                        Next::Follow(beside) => {
                            if !pursuit.not_leader(beside.leader.as_ref()) {
                                pursuit.pause(deadline).await;
                            }
                        }
                    }
                }
                Attempt::NeverSent(cause) => {
                    self.keep(request);
                    pursuit.again(deadline, &cause).await;
                    self.last = cause;
                }
                Attempt::Lost(cause) => {
                    count_attempt(&mut request);
                    request.iter_mut().for_each(|(_, pending)| pending.maybe_stored = true);
                    self.keep(request);
                    pursuit.again(deadline, &cause).await;
                    self.last = cause;
                }
            }
        }
    }

    fn numbers(&self, first_sequence: u64) -> ProducerNumbers {
        ProducerNumbers {
            producer_id: self.producer.id,
            epoch: self.producer.epoch,
            floor: self.lane.window.floor(),
            first_sequence,
        }
    }

    /// The longest run of adjacent sequences from the front.
    fn next_request(&mut self) -> Vec<(u64, Pending)> {
        let adjacent = self.outstanding.iter().zip(self.outstanding.iter().skip(1));
        let run = 1 + adjacent.take_while(|((one, _), (next, _))| one + 1 == *next).count();
        let count = run.min(self.request_max).min(self.outstanding.len());
        self.outstanding.drain(..count).collect()
    }

    /// Back to the front, in order.
    fn keep(&mut self, request: Vec<(u64, Pending)>) {
        for numbered in request.into_iter().rev() {
            self.outstanding.push_front(numbered);
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let (over, rest): (VecDeque<_>, _) =
            self.outstanding.drain(..).partition(|(_, pending)| pending.deadline <= now);
        self.outstanding = rest;
        for (sequence, pending) in over {
            self.fail(sequence, pending, NotStored::Unavailable(self.last.clone()));
        }
    }

    fn fail(&self, sequence: u64, pending: Pending, why: NotStored) {
        self.lane.window.settle(sequence);
        pending.fail(why);
    }

    /// Gives every message its part of the answer; what has no outcome yet is kept.
    fn settle(
        &mut self,
        request: Vec<(u64, Pending)>,
        answer: v2::SendMessageResponse,
        beside: Beside,
    ) -> Next {
        let (mut top, mut text) = status_of(answer.status.as_ref());
        let each = answer.entries.len() == request.len();
        if !each && matches!(top, code::OK | code::MULTIPLE_RESULTS) {
            text = format!("answer for {} of {} messages", answer.entries.len(), request.len());
            top = 0;
        }
        if !each && request.len() > 1 && is_about_content(top) {
            // One of them is refused, and it is not said which: each on its own.
            self.request_max = 1;
            self.keep(request);
            return Next::Now;
        }
        let mut next = Next::Now;
        let mut kept = Vec::new();
        for (place, (sequence, mut pending)) in request.into_iter().enumerate() {
            let entry = if each { answer.entries.get(place) } else { None };
            let (code, text) = match entry {
                Some(entry) => status_of(entry.status.as_ref().or(answer.status.as_ref())),
                None => (top, text.clone()),
            };
            let cause = cause(code, &text, &beside);
            match Verdict::of(code) {
                Verdict::Done => {
                    self.lane.window.settle(sequence);
                    let offset = entry.map_or(0, |entry| entry.offset);
                    pending.confirm(&self.lane.group.name, offset);
                    continue;
                }
                Verdict::Refused => {
                    if code == code::TOPIC_NOT_FOUND {
                        self.producer.core.routes.forget(&self.lane.topic);
                    }
                    self.fail(sequence, pending, NotStored::Refused(cause));
                    continue;
                }
                Verdict::NotLeader => next = Next::Follow(beside.clone()),
                Verdict::Busy => next = Next::Pause,
                Verdict::Unknown => {
                    pending.maybe_stored = true;
                    if beside.reason.as_deref().is_some_and(|reason| FINAL_REASONS.contains(&reason)) {
                        self.fail(sequence, pending, NotStored::Refused(cause));
                        continue;
                    }
                    next = Next::Pause;
                }
            }
            self.last = cause;
            kept.push((sequence, pending));
        }
        self.keep(kept);
        next
    }
}

fn count_attempt(request: &mut [(u64, Pending)]) {
    for (_, pending) in request {
        pending.attempts += 1;
    }
}
