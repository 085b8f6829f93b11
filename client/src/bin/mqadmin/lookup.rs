//! `topicStatus` and `queryMsgByOffset`: what the queues of a topic hold.

use clap::Args;
use mq_client::admin::{Admin, AdminError};
use mq_protocol::cluster::{QueueOffsetsRequest, QueueOffsetsResponse, QueueRecord, ReadQueueRequest};
use serde_json::{Value, json};

use crate::arguments::Connection;
use crate::outcome::{Failure, Outcome};
use crate::output;
use crate::topics::broker_groups;

#[derive(Debug, Args)]
pub(crate) struct TopicStatus {
    /// Name of the topic
    #[arg(short = 't', long = "topic")]
    topic: String,
    /// Namespace of the topic
    #[arg(long, default_value = "")]
    namespace: String,
}

#[derive(Debug, Args)]
pub(crate) struct QueryByOffset {
    /// Name of the topic
    #[arg(short = 't', long = "topic")]
    topic: String,
    /// Namespace of the topic
    #[arg(long, default_value = "")]
    namespace: String,
    /// Broker group; the only one by default
    #[arg(short = 'b', long = "brokerName", default_value = "")]
    broker_group: String,
    /// Number of the queue
    #[arg(short = 'i', long = "queueId")]
    queue: u32,
    /// Position in the queue
    #[arg(short = 'o', long = "offset")]
    offset: u64,
}

/// Positions of every queue of a topic, in all broker groups that have it.
pub(crate) async fn topic_status(connection: &Connection, arguments: TopicStatus) -> Outcome {
    let admin = connection.admin()?;
    let mut found = Vec::new();
    for group in broker_groups(&admin, &[]).await? {
        let request = QueueOffsetsRequest {
            group: group.clone(),
            namespace: arguments.namespace.clone(),
            topic: arguments.topic.clone(),
            local: false,
        };
        match admin.queue_offsets(request).await {
            Ok(answer) => found.push((group, answer)),
            Err(AdminError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if found.is_empty() {
        return Err(Failure::not_found(format!("topic {}", arguments.topic)));
    }
    if connection.json {
        let queues = found.iter().flat_map(|(group, answer)| queues_of(group, answer));
        return output::json(&json!(queues.collect::<Vec<_>>()));
    }
    let rows = found.iter().flat_map(|(group, answer)| {
        let queues = answer.topic.iter().flat_map(|topic| &topic.queue_info);
        queues.zip(&answer.last_store_times).map(move |(queue, stored)| {
            let numbers = [u64::from(queue.queue), queue.min_offset, queue.max_offset, *stored];
            std::iter::once(group.clone()).chain(numbers.iter().map(u64::to_string)).collect()
        })
    });
    output::table(&["BROKER GROUP", "QUEUE", "MIN", "MAX", "LAST STORED (MS)"], rows.collect())
}

fn queues_of<'a>(group: &'a str, answer: &'a QueueOffsetsResponse) -> impl Iterator<Item = Value> + 'a {
    let queues = answer.topic.iter().flat_map(|topic| &topic.queue_info);
    queues.zip(&answer.last_store_times).map(move |(queue, stored)| {
        json!({
            "broker_group": group,
            "queue": queue.queue,
            "min": queue.min_offset,
            "max": queue.max_offset,
            "last_stored_ms": stored,
        })
    })
}

/// One message by its position.
pub(crate) async fn by_offset(connection: &Connection, arguments: QueryByOffset) -> Outcome {
    let record = message_at(&connection.admin()?, &arguments).await?;
    if connection.json {
        return output::json(&json!({
            "offset": record.offset,
            "log_offset": record.log_offset,
            "stored_ms": record.store_time,
            "message_id": record.message_id,
            "body": String::from_utf8_lossy(&record.body),
            "body_bytes": record.body.len(),
            "properties": record.properties,
        }));
    }
    output::line(format!("message id   {}", record.message_id))?;
    output::line(format!("queue        {}", arguments.queue))?;
    output::line(format!("offset       {}", record.offset))?;
    output::line(format!("log offset   {}", record.log_offset))?;
    output::line(format!("stored (ms)  {}", record.store_time))?;
    let mut properties: Vec<_> = record.properties.iter().collect();
    properties.sort();
    for (key, value) in properties {
        output::line(format!("property     {key}={value}"))?;
    }
    output::line(format!("body         {} bytes", record.body.len()))?;
    output::line(&record.body)
}

async fn message_at(admin: &Admin, arguments: &QueryByOffset) -> Outcome<QueueRecord> {
    let request = ReadQueueRequest {
        group: arguments.broker_group.clone(),
        namespace: arguments.namespace.clone(),
        topic: arguments.topic.clone(),
        queue: arguments.queue,
        from: arguments.offset,
        max: 1,
        local: false,
        raw: false,
    };
    let answer = admin.read_queue(request).await?;
    // Reading begins at the first position when the one that is asked for lies below it.
    let found = answer.records.into_iter().find(|record| record.offset == arguments.offset);
    found.ok_or_else(|| {
        let (min, max) = (answer.min_offset, answer.max_offset);
        Failure::not_found(format!(
            "offset {} of queue {}: it holds {min} to {max}, the last one excluded",
            arguments.offset, arguments.queue
        ))
    })
}
