//! RocketMQ's own command names, with its options.

use clap::{Args, Subcommand};

use crate::arguments::Connection;
use crate::groups::{self, CreateGroup, NamedGroup};
use crate::kv::{self, DeleteKv, PutKv};
use crate::lookup::{self, QueryByOffset, TopicStatus};
use crate::outcome::{Failure, Outcome};
use crate::topics::{self, CreateTopic, NamedTopic};

#[derive(Debug, Subcommand)]
pub(crate) enum CompatibleCommand {
    /// RocketMQ's name for `topic create`
    #[command(name = "updateTopic")]
    UpdateTopic(UpdateTopic),
    /// RocketMQ's name for `topic list`
    #[command(name = "topicList")]
    TopicList(Target),
    /// RocketMQ's name for `topic route`
    #[command(name = "topicRoute")]
    TopicRoute(TopicTarget),
    /// First and next position of every queue of a topic
    #[command(name = "topicStatus")]
    TopicStatus(TopicStatus),
    /// The message at a position of a queue
    #[command(name = "queryMsgByOffset")]
    QueryMsgByOffset(QueryByOffset),
    /// RocketMQ's name for `topic delete`
    #[command(name = "deleteTopic")]
    DeleteTopic(TopicTarget),
    /// RocketMQ's name for `group create`
    #[command(name = "updateSubGroup")]
    UpdateSubGroup(UpdateSubGroup),
    /// RocketMQ's name for `group delete`
    #[command(name = "deleteSubGroup")]
    DeleteSubGroup(GroupTarget),
    /// RocketMQ's name for `kv put`
    #[command(name = "updateKvConfig")]
    UpdateKvConfig(PutKv),
    /// RocketMQ's name for `kv delete`
    #[command(name = "deleteKvConfig")]
    DeleteKvConfig(DeleteKv),
}

/// RocketMQ's way to name brokers.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// API address of a broker
    #[arg(short = 'b', long = "brokerAddr")]
    broker_addr: Option<String>,
    /// Name of the cluster; there is one behind an address
    #[arg(short = 'c', long = "clusterName")]
    _cluster_name: Option<String>,
}

impl Target {
    fn apply(&self, connection: &mut Connection) {
        if self.broker_addr.is_some() {
            connection.broker.clone_from(&self.broker_addr);
            connection.namesrv = None;
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct UpdateTopic {
    #[command(flatten)]
    target: Target,
    /// Name of the topic
    #[arg(short = 't', long = "topic")]
    topic: String,
    /// Number of queues that can be read
    #[arg(short = 'r', long = "readQueueNums")]
    read_queues: Option<u32>,
    /// Number of queues that can be written; the same as can be read
    #[arg(short = 'w', long = "writeQueueNums")]
    write_queues: Option<u32>,
    /// 2 = write, 4 = read, 6 = both
    #[arg(short = 'p', long = "perm")]
    perm: Option<u32>,
    /// Attributes: +message.type=FIFO
    #[arg(short = 'a', long = "attributes", allow_hyphen_values = true)]
    attributes: Option<String>,
    /// Ordered topics are told by their type here
    #[arg(short = 'o', long = "order")]
    order: Option<bool>,
}

#[derive(Debug, Args)]
pub(crate) struct TopicTarget {
    #[command(flatten)]
    target: Target,
    /// Name of the topic
    #[arg(short = 't', long = "topic")]
    topic: String,
}

#[derive(Debug, Args)]
pub(crate) struct GroupTarget {
    #[command(flatten)]
    target: Target,
    /// Name of the subscription group
    #[arg(short = 'g', long = "groupName")]
    group: String,
}

#[derive(Debug, Args)]
pub(crate) struct UpdateSubGroup {
    #[command(flatten)]
    target: Target,
    /// Name of the subscription group
    #[arg(short = 'g', long = "groupName")]
    group: String,
    /// Repeated deliveries of a message: one less than all deliveries
    #[arg(short = 'r', long = "retryMaxTimes")]
    retry_max_times: Option<u32>,
    /// Delivers in order
    #[arg(short = 'o', long = "consumeMessageOrderly")]
    orderly: Option<bool>,
    /// Allows or forbids consuming
    #[arg(short = 's', long = "consumeEnable")]
    consume_enable: Option<bool>,
}

pub(crate) async fn run(mut connection: Connection, command: CompatibleCommand) -> Outcome {
    match command {
        CompatibleCommand::UpdateTopic(update) => {
            update.target.apply(&mut connection);
            topics::run_create(&connection, update.translate()?).await
        }
        CompatibleCommand::TopicList(target) => {
            target.apply(&mut connection);
            topics::list(&connection).await
        }
        CompatibleCommand::TopicRoute(named) => {
            named.target.apply(&mut connection);
            topics::route(&connection, &NamedTopic { topic: named.topic, namespace: String::new() }).await
        }
        CompatibleCommand::TopicStatus(status) => lookup::topic_status(&connection, status).await,
        CompatibleCommand::QueryMsgByOffset(query) => lookup::by_offset(&connection, query).await,
        CompatibleCommand::DeleteTopic(named) => {
            named.target.apply(&mut connection);
            topics::delete(&connection, &NamedTopic { topic: named.topic, namespace: String::new() }).await
        }
        CompatibleCommand::UpdateSubGroup(update) => {
            update.target.apply(&mut connection);
            groups::run_create(&connection, update.translate()).await
        }
        CompatibleCommand::UpdateKvConfig(put) => kv::put(&connection, &put).await,
        CompatibleCommand::DeleteKvConfig(delete) => kv::delete(&connection, &delete).await,
        CompatibleCommand::DeleteSubGroup(named) => {
            named.target.apply(&mut connection);
            groups::delete(&connection, &NamedGroup { group: named.group, namespace: String::new() }).await
        }
    }
}

impl UpdateTopic {
    fn translate(self) -> Outcome<CreateTopic> {
        if let (Some(read), Some(write)) = (self.read_queues, self.write_queues)
            && read != write
        {
            let text = "a queue that can be written can be read here: give -r and -w the same number";
            return Err(Failure::wrong_use(format!("-r {read} -w {write}: {text}")));
        }
        let message_type = self.attributes.as_deref().map(message_type).transpose()?.flatten();
        let ordered = (self.order == Some(true)).then_some(mq_protocol::v2::MessageType::Fifo as i32);
        Ok(CreateTopic {
            topic: Some(self.topic),
            from: None,
            queues: self.write_queues.or(self.read_queues),
            message_type: message_type.or(ordered.and_then(|ordered| u32::try_from(ordered).ok())),
            perm: self.perm,
            namespace: String::new(),
            broker_groups: Vec::new(),
            create_only: false,
        })
    }
}

/// Reads `+message.type=FIFO`, alone or among others that are refused.
fn message_type(attributes: &str) -> Outcome<Option<u32>> {
    let mut found = None;
    for attribute in attributes.split(',').map(str::trim).filter(|attribute| !attribute.is_empty()) {
        match attribute.strip_prefix('+').and_then(|attribute| attribute.split_once('=')) {
            Some(("message.type", name)) => {
                found = Some(topics::message_type(name).map_err(Failure::wrong_use)?);
            }
            _ => {
                return Err(Failure::wrong_use(format!(
                    "attribute `{attribute}`: only +message.type=... is known"
                )));
            }
        }
    }
    Ok(found)
}

impl UpdateSubGroup {
    fn translate(self) -> CreateGroup {
        CreateGroup {
            group: Some(self.group),
            from: None,
            ordered: self.orderly,
            max_attempts: self.retry_max_times.map(|times| times.saturating_add(1)),
            retry_pauses: Vec::new(),
            consume_enabled: self.consume_enable,
            namespace: String::new(),
            broker_groups: Vec::new(),
            create_only: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_type_is_read_from_the_attributes() {
        assert_eq!(message_type("+message.type=FIFO"), Ok(Some(2)));
        assert_eq!(message_type(""), Ok(None));
        assert!(message_type("+message.type=X").is_err());
        assert!(message_type("-message.type").is_err());
        assert!(message_type("+else=1").is_err());
    }
}
