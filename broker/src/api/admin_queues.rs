//! Queues read by position: what a member holds, whoever consumes it.
//!
//! What always holds: the applied index is read before the queue's range, so that everything up to it is in the
//! answer; nothing above the published end of a queue is shown.

use std::sync::Arc;

use mq_protocol::cluster::{
    QueueInfo, QueueOffsetsRequest, QueueOffsetsResponse, QueueRecord, ReadQueueRequest, ReadQueueResponse,
};
use mq_protocol::message::properties::{Properties, name};
use mq_protocol::message::{Record, fill_positions};
use mq_store::{QueueId, QueueOffset, QueueTable, StoreError, Unit};

use super::admin::done;
use crate::consume::read::{self, Stored};
use crate::error::BrokerError;
use crate::group::BrokerGroup;
use crate::refusal::{CallError, Refusal};
use crate::registration::topic_info;
use crate::state::{StateView, Topic};

/// Records of one answer, at most.
const RECORDS_MAX: usize = 1_000;
/// Bytes of records in one answer, unless the first one alone is longer.
const BYTES_MAX: u64 = 3 << 20;

/// What this member has of one queue.
pub(super) async fn read_queue(
    group: &BrokerGroup,
    request: ReadQueueRequest,
) -> Result<ReadQueueResponse, CallError> {
    let view = &group.open()?.view;
    let topic = known(view, &request.namespace, &request.topic)?;
    if request.queue >= topic.queues {
        let problem = format!("queue {} of topic {:?}: it has {}", request.queue, topic.name, topic.queues);
        return Err(Refusal::BadRequest(problem).into());
    }
    let applied_index = view.applied().index.0;
    let id = QueueId::new(topic.id, topic.incarnation, request.queue);
    let wanted = match request.max {
        0 => RECORDS_MAX,
        max => RECORDS_MAX.min(max as usize),
    };
    let run = units(view, id, request.from, wanted).await?;
    let places = run.units.iter().map(|unit| unit.offset).collect();
    let stored = read::read(&view.shared().log, places).await?;
    let records = stored.into_iter().zip(&run.units).zip(run.first..);
    let records = records.map(|((stored, unit), offset)| record(&stored, *unit, offset, request.raw));
    Ok(ReadQueueResponse {
        result: Some(done(false)),
        node_id: group.raft.node_id(),
        applied_index,
        topic_id: topic.id,
        incarnation: topic.incarnation,
        min_offset: run.min,
        max_offset: run.max,
        records: records.collect::<Result<_, _>>()?,
    })
}

/// First and next positions of all queues of a topic here, and when their last messages were stored.
pub(super) async fn queue_offsets(
    group: &BrokerGroup,
    request: QueueOffsetsRequest,
) -> Result<QueueOffsetsResponse, CallError> {
    let view = &group.open()?.view;
    let topic = known(view, &request.namespace, &request.topic)?;
    let applied_index = view.applied().index.0;
    let mut info = topic_info(&topic);
    let mut last_store_times = Vec::with_capacity(topic.queues as usize);
    for queue in 0..topic.queues {
        let id = QueueId::new(topic.id, topic.incarnation, queue);
        let (_, next) = view.queue_range(id);
        let run = units(view, id, next.saturating_sub(1), 1).await?;
        let places = run.units.iter().map(|unit| unit.offset).collect();
        let stored = read::read(&view.shared().log, places).await?;
        last_store_times.push(stored.first().map_or(0, |stored| stored.store_time));
        info.queue_info.push(QueueInfo { queue, min_offset: run.min, max_offset: run.max });
    }
    Ok(QueueOffsetsResponse {
        result: Some(done(false)),
        node_id: group.raft.node_id(),
        applied_index,
        topic: Some(info),
        last_store_times,
    })
}

fn known(view: &StateView, namespace: &str, name: &str) -> Result<Arc<Topic>, BrokerError> {
    let topic = view.topic(namespace, name);
    topic.ok_or_else(|| BrokerError::UnknownTopic { topic: name.to_owned() })
}

/// Units that lie together, and the range of their queue when they were read.
#[derive(Debug, PartialEq)]
struct Run {
    min: u64,
    max: u64,
    first: u64,
    units: Vec<Unit>,
}

async fn units(view: &StateView, id: QueueId, from: u64, wanted: usize) -> Result<Run, BrokerError> {
    let queues = view.shared().queues.clone();
    let reading = tokio::task::spawn_blocking(move || run(&queues, id, from, wanted)).await;
    Ok(reading.map_err(|error| BrokerError::Internal { detail: format!("reading thread: {error}") })??)
}

fn run(queues: &QueueTable, id: QueueId, from: u64, wanted: usize) -> Result<Run, StoreError> {
    loop {
        let (min, max) = queues.range(id);
        let first = from.max(min.0);
        let below_end = usize::try_from(max.0.saturating_sub(first)).unwrap_or(usize::MAX);
        let read = match below_end.min(wanted) {
            0 => Ok(Vec::new()),
            wanted => queues.read(id, QueueOffset(first), wanted),
        };
        match read {
            // The queue's first position moved up in between: its new range is looked at.
            Err(StoreError::BelowMinimum { minimum, .. }) if minimum > min => {}
            read => return Ok(Run { min: min.0, max: max.0, first, units: fitting(read?) }),
        }
    }
}

/// The first units whose records fit into one answer; at least one.
fn fitting(mut units: Vec<Unit>) -> Vec<Unit> {
    let mut bytes = 0;
    let fit = units.iter().take_while(|unit| {
        bytes += u64::from(unit.size);
        bytes <= BYTES_MAX
    });
    let count = fit.count().max(1);
    units.truncate(count);
    units
}

fn record(stored: &Stored, unit: Unit, offset: u64, raw: bool) -> Result<QueueRecord, BrokerError> {
    let damaged =
        |error: &dyn std::fmt::Display| BrokerError::Internal { detail: format!("stored record: {error}") };
    let parsed = Record::parse(&stored.record).map_err(|error| damaged(&error))?;
    let properties = Properties::parse(parsed.properties).map_err(|error| damaged(&error))?;
    let message_id = properties.get(name::UNIQ_KEY).unwrap_or_default().to_owned();
    let mut found = QueueRecord {
        offset,
        log_offset: unit.offset.0,
        store_time: stored.store_time,
        message_id,
        ..QueueRecord::default()
    };
    if raw {
        let mut record = stored.record.to_vec();
        fill_positions(&mut record, offset, unit.offset.0, stored.store_time)
            .map_err(|error| damaged(&error))?;
        found.record = record.into();
    } else {
        found.body = stored.record.slice_ref(parsed.body);
        let pairs = properties.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        found.properties = pairs.collect();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(size: u32) -> Unit {
        Unit { size, ..Unit::default() }
    }

    #[test]
    fn an_answer_is_bounded_in_bytes_but_never_without_progress() {
        assert_eq!(fitting(vec![unit(1 << 20); 5]).len(), 3);
        assert_eq!(fitting(vec![unit(4 << 20); 2]).len(), 1);
        assert_eq!(fitting(Vec::new()).len(), 0);
    }
}
