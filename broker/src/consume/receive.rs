//! A receive: pick, hand out, or wait for something to pick.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_store::Term;

use super::hold::Hold;
use super::picker::{PickError, Picked, Wanted};
use super::{Consumer, Delivered, MAX_BATCH, MAX_RECEIVES, Receive, slow_files};
use crate::error::{BrokerError, in_flight_limit};
use crate::state::keys::GroupRef;
use crate::state::{SubscriptionGroup, Topic};

/// How long positions that the filter passes over wait for a message to go with.
const SKIP_AFTER: Duration = Duration::from_millis(100);
/// Pause after a pick of which apply accepted nothing; doubles up to 64 times that while it stays so.
const REJECTED_PAUSE: Duration = Duration::from_millis(2);

/// Topic and group of a receive as they are now.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub topic: Arc<Topic>,
    pub group: Arc<SubscriptionGroup>,
}

impl Subject {
    fn group_ref(&self) -> GroupRef {
        GroupRef { id: self.group.id, incarnation: self.group.incarnation }
    }
}

impl Consumer {
    /// Hands out messages, or waits for some until `poll_until`; empty = there were none.
    ///
    /// # Errors
    /// `NotLeader` only while nothing was proposed. `Unknown` when the deadline passed with messages on the way to the
    /// caller: they come again after their invisible time.
    pub async fn receive(&self, call: Receive) -> Result<Vec<Delivered>, BrokerError> {
        let limit = MAX_RECEIVES as u64;
        let _permit = self.receives.try_acquire().map_err(|_| BrokerError::Busy {
            what: "receives that wait",
            value: limit,
            limit,
        })?;
        let mut term = self.leading()?;
        let mut leadership = self.leadership.clone();
        let mut passed_over: Option<Instant> = None;
        let mut rejected = 0;
        loop {
            let subject = self.subject(&call)?;
            let bell = self.view.shared().arrivals.bell(subject.topic.id);
            // Before the look: what comes between look and wait rings.
            let mut ring = pin!(bell.notified());
            ring.as_mut().enable();
            let may_skip = passed_over.is_some_and(|since| since.elapsed() >= SKIP_AFTER);
            let picked = self.pick(&call, &subject, term, may_skip).await?;
            let (next_due, limited, skipped) = (picked.next_due, picked.limited, picked.skipped);
            if !picked.queues.is_empty() {
                let messages = picked.messages() > 0;
                let hold = Hold::new(Arc::clone(&self.picker), subject.group_ref(), term, picked.queues);
                let delivered = match self.deliver(&call, &subject, hold).await {
                    Ok(delivered) => delivered,
                    // The caller proposed nothing by itself yet; another node may serve it from the start.
                    Err(error @ BrokerError::NotLeader { .. }) if passed_over.is_none() => return Err(error),
                    Err(BrokerError::NotLeader { .. }) => return Ok(Vec::new()),
                    Err(error) => return Err(error),
                };
                if !delivered.is_empty() || Instant::now() >= call.poll_until {
                    return Ok(delivered);
                }
                passed_over = None;
                if messages {
                    tokio::time::sleep(REJECTED_PAUSE * (1 << rejected)).await;
                    rejected = 6.min(rejected + 1);
                }
            } else if limited {
                return Err(in_flight_limit());
            } else {
                if Instant::now() >= call.poll_until {
                    return Ok(Vec::new());
                }
                passed_over = if skipped { passed_over.or_else(|| Some(Instant::now())) } else { None };
                let wake = self.wake_time(&call, next_due, passed_over);
                tokio::select! {
                    () = ring => {}
                    () = tokio::time::sleep_until(wake.into()) => {}
                    changed = leadership.changed() => {
                        // The group is gone, and with it whoever would say that it no longer leads.
                        if changed.is_err() {
                            return Ok(Vec::new());
                        }
                    }
                }
            }
            match self.leading() {
                Ok(now) => term = now,
                // A poll ends without messages when leadership does; the client asks again and is led on.
                Err(_) => return Ok(Vec::new()),
            }
        }
    }

    /// Topic and group, if they are there and may be consumed.
    fn subject(&self, call: &Receive) -> Result<Subject, BrokerError> {
        let topic = self.view.topic(&call.namespace, &call.topic);
        let topic = topic.ok_or_else(|| BrokerError::UnknownTopic { topic: call.topic.clone() })?;
        let group = self.view.group(&call.namespace, &call.group);
        let group = group.ok_or_else(|| BrokerError::UnknownGroup { group: call.group.clone() })?;
        if !topic.readable() {
            return Err(BrokerError::NotReadable { name: call.topic.clone() });
        }
        if !group.consume_enabled {
            return Err(BrokerError::NotReadable { name: call.group.clone() });
        }
        Ok(Subject { topic, group })
    }

    async fn pick(
        &self,
        call: &Receive,
        subject: &Subject,
        term: Term,
        may_skip: bool,
    ) -> Result<Picked, BrokerError> {
        let wanted = Wanted {
            topic: &subject.topic,
            group: &subject.group,
            filter: &call.filter,
            batch: call.batch.clamp(1, MAX_BATCH),
            term,
            lease_time: self.raft.lease_now(),
            may_skip,
            may_block: false,
        };
        match self.picker.pick(wanted) {
            Ok(picked) => Ok(picked),
            Err(PickError::Store(error)) => Err(error.into()),
            Err(PickError::Cold) => {
                let (picker, subject, filter) =
                    (Arc::clone(&self.picker), subject.clone(), call.filter.clone());
                let Wanted { batch, lease_time, .. } = wanted;
                let group = subject.group_ref();
                // The hold gives the reservations back if this call goes away while the thread still picks.
                let cold = move || -> Result<(Picked, Hold), PickError> {
                    let (topic, group_settings, filter) = (&subject.topic, &subject.group, &filter);
                    let wanted = Wanted {
                        topic,
                        group: group_settings,
                        filter,
                        batch,
                        term,
                        lease_time,
                        may_skip,
                        may_block: true,
                    };
                    let mut picked = picker.pick(wanted)?;
                    let picks = std::mem::take(&mut picked.queues);
                    let hold = Hold::new(Arc::clone(&picker), group, term, picks);
                    Ok((picked, hold))
                };
                let picking = tokio::task::spawn_blocking(cold);
                let Ok(picked) = tokio::time::timeout_at(call.deadline.into(), picking).await else {
                    return Err(slow_files());
                };
                match picked {
                    Ok(Ok((mut picked, mut hold))) => {
                        picked.queues = std::mem::take(&mut hold.picks);
                        Ok(picked)
                    }
                    Ok(Err(PickError::Store(error))) => Err(error.into()),
                    Ok(Err(PickError::Cold)) => Ok(Picked::default()),
                    Err(error) => Err(BrokerError::Internal { detail: format!("picking thread: {error}") }),
                }
            }
        }
    }

    /// When to look again although nothing rang.
    fn wake_time(&self, call: &Receive, next_due: Option<u64>, passed_over: Option<Instant>) -> Instant {
        let now = Instant::now();
        let lease_time = self.raft.lease_now();
        // One ms more: a lease time is cut to whole ms.
        let due = next_due.map(|due| now + Duration::from_millis(due.saturating_sub(lease_time) + 1));
        let skip = passed_over.map(|since| since + SKIP_AFTER);
        [due, skip].into_iter().flatten().fold(call.poll_until, Instant::min)
    }
}
