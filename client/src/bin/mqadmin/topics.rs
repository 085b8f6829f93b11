//! `topic`: create, list, route, delete.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use futures::{StreamExt, TryStreamExt};
use mq_client::admin::{Admin, AdminError};
use mq_protocol::{cluster, v2};
use serde_json::json;

use crate::arguments::Connection;
use crate::input::TableFile;
use crate::outcome::{Failure, Outcome};
use crate::output;

/// Rows of a table file that are created at the same time.
const AT_ONCE: usize = 16;

#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// Creates a topic, or changes what is named of one
    Create(CreateTopic),
    /// Lists the topics of all broker groups
    List,
    /// Shows who serves a topic
    Route(NamedTopic),
    /// Deletes a topic with its messages
    Delete(NamedTopic),
}

#[derive(Debug, Args)]
pub(crate) struct NamedTopic {
    /// Name of the topic
    #[arg(short = 't', long = "topic")]
    pub(crate) topic: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    pub(crate) namespace: String,
}

#[derive(Debug, Args)]
pub(crate) struct CreateTopic {
    /// Name of the topic
    #[arg(short = 't', long = "topic", required_unless_present = "from", conflicts_with = "from")]
    pub(crate) topic: Option<String>,
    /// A file with the columns name, type and queues, separated by tabs
    #[arg(long, value_name = "FILE.tsv")]
    pub(crate) from: Option<PathBuf>,
    /// Number of queues; 8 for a new topic
    #[arg(long)]
    pub(crate) queues: Option<u32>,
    /// NORMAL, FIFO, DELAY, TRANSACTION, LITE or PRIORITY
    #[arg(long = "type", value_parser = message_type)]
    pub(crate) message_type: Option<u32>,
    /// 2 = write, 4 = read, 6 = both
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=7))]
    pub(crate) perm: Option<u32>,
    /// Its namespace
    #[arg(long, default_value = "")]
    pub(crate) namespace: String,
    /// Broker groups that get it; all by default
    #[arg(long = "broker-group", value_delimiter = ',')]
    pub(crate) broker_groups: Vec<String>,
    /// Fails when it exists
    #[arg(long)]
    pub(crate) create_only: bool,
}

pub(crate) fn message_type(name: &str) -> Result<u32, String> {
    let known = v2::MessageType::from_str_name(&name.to_ascii_uppercase());
    let number = known.filter(|known| *known != v2::MessageType::Unspecified).map(|known| known as i32);
    number
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| format!("`{name}` is not one of NORMAL, FIFO, DELAY, TRANSACTION, LITE, PRIORITY"))
}

pub(crate) async fn run(connection: &Connection, command: TopicCommand) -> Outcome {
    match command {
        TopicCommand::Create(create) => run_create(connection, create).await,
        TopicCommand::List => list(connection).await,
        TopicCommand::Route(named) => route(connection, &named).await,
        TopicCommand::Delete(named) => delete(connection, &named).await,
    }
}

pub(crate) async fn run_create(connection: &Connection, create: CreateTopic) -> Outcome {
    let admin = connection.admin()?;
    let groups = broker_groups(&admin, &create.broker_groups).await?;
    let wanted = wanted(&create)?;
    let fifo = v2::MessageType::Fifo as i32;
    let ordered =
        |topic: &cluster::PutTopicRequest| topic.message_type.map(i64::from) == Some(i64::from(fifo));
    if groups.len() > 1
        && let Some(topic) = wanted.iter().find(|topic| ordered(topic))
    {
        let text = "a FIFO topic lives in one broker group: name it by --broker-group";
        return Err(Failure::wrong_use(format!("topic {}: {text}", topic.name)));
    }
    let puts = wanted.iter().flat_map(|topic| groups.iter().map(move |group| (topic, group)));
    let done: Vec<_> = futures::stream::iter(puts.map(|(topic, group)| {
        let request = cluster::PutTopicRequest { group: group.clone(), ..topic.clone() };
        let admin = &admin;
        async move { Ok::<_, AdminError>((topic, group, admin.put_topic(request).await?)) }
    }))
    .buffered(AT_ONCE)
    .try_collect()
    .await?;
    for (topic, group, changed) in done {
        if connection.json {
            output::json(&json!({ "topic": topic.name, "broker_group": group, "changed": changed }))?;
        } else {
            let what = if changed { "created or changed" } else { "unchanged" };
            output::line(format!("topic {} in {group}: {what}", topic.name))?;
        }
    }
    Ok(())
}

fn wanted(create: &CreateTopic) -> Outcome<Vec<cluster::PutTopicRequest>> {
    let base = cluster::PutTopicRequest {
        group: String::new(),
        namespace: create.namespace.clone(),
        name: create.topic.clone().unwrap_or_default(),
        queues: create.queues,
        permission: create.perm,
        message_type: create.message_type,
        create_only: create.create_only,
    };
    let Some(path) = &create.from else { return Ok(vec![base]) };
    let file = TableFile::read(path)?;
    let rows = file.rows().map(|row| {
        let number = |cell: &str| cell.parse().map_err(|_| format!("`{cell}` is not a number"));
        Ok(cluster::PutTopicRequest {
            name: row.required("name")?.to_owned(),
            queues: row.parsed("queues", number)?.or(base.queues),
            message_type: row.parsed("type", message_type)?.or(base.message_type),
            ..base.clone()
        })
    });
    rows.collect()
}

/// The named broker groups, or all there are.
pub(crate) async fn broker_groups(admin: &Admin, named: &[String]) -> Outcome<Vec<String>> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let groups: Vec<_> = admin.broker_groups().await?.into_iter().map(|group| group.name).collect();
    if groups.is_empty() {
        Err(Failure::unavailable("no broker group is registered yet"))
    } else {
        Ok(groups)
    }
}

/// Namespace and name.
type TopicName = (String, String);

async fn topics_of_all(
    admin: &Admin,
    with_queues: bool,
) -> Outcome<BTreeMap<TopicName, Vec<(String, cluster::TopicInfo)>>> {
    let groups = broker_groups(admin, &[]).await?;
    let asked =
        groups.iter().map(|group| async move { Ok((group, admin.topics(group, with_queues).await?)) });
    let answers: Vec<(&String, Vec<cluster::TopicInfo>)> =
        futures::future::join_all(asked).await.into_iter().collect::<Result<_, AdminError>>()?;
    let mut topics: BTreeMap<TopicName, Vec<(String, cluster::TopicInfo)>> = BTreeMap::new();
    for (group, infos) in answers {
        for info in infos {
            let name = (info.namespace.clone(), info.name.clone());
            topics.entry(name).or_default().push((group.clone(), info));
        }
    }
    Ok(topics)
}

pub(crate) async fn list(connection: &Connection) -> Outcome {
    let topics = topics_of_all(&connection.admin()?, true).await?;
    let stored = |info: &cluster::TopicInfo| -> u64 {
        info.queue_info.iter().map(|queue| queue.max_offset.saturating_sub(queue.min_offset)).sum()
    };
    let mut rows = Vec::new();
    let mut values = Vec::new();
    for ((namespace, name), infos) in topics {
        for (group, info) in infos {
            let kind = output::message_type_name(info.message_type);
            values.push(json!({
                "namespace": namespace, "topic": name, "broker_group": group, "type": kind, "queues": info.queues,
                "permission": info.permission, "messages": stored(&info), "id": info.id,
                "incarnation": info.incarnation,
                "queue_offsets": info.queue_info.iter().map(|queue| json!({
                    "queue": queue.queue, "min": queue.min_offset, "max": queue.max_offset,
                })).collect::<Vec<_>>(),
            }));
            rows.push(vec![
                shown(&namespace, &name),
                kind.to_owned(),
                info.queues.to_string(),
                output::permission_name(info.permission),
                stored(&info).to_string(),
                group,
            ]);
        }
    }
    if connection.json {
        return output::json(&json!(values));
    }
    output::table(&["TOPIC", "TYPE", "QUEUES", "PERM", "MESSAGES", "BROKER GROUP"], rows)
}

pub(crate) fn shown(namespace: &str, name: &str) -> String {
    mq_protocol::names::resource_key(namespace, name)
}

struct RouteRow {
    broker_group: String,
    leader: String,
    queues: u32,
    permission: u32,
    message_type: u32,
}

pub(crate) async fn route(connection: &Connection, named: &NamedTopic) -> Outcome {
    let admin = connection.admin()?;
    let rows = match admin.topic_route(&named.namespace, &named.topic).await {
        Ok(route) => route
            .groups
            .into_iter()
            .map(|group| RouteRow {
                broker_group: group.broker_group,
                leader: group.leader_client_address,
                queues: group.queues,
                permission: group.permission,
                message_type: group.message_type,
            })
            .collect(),
        // No name server is given, or it has not heard of the topic yet: the brokers know their own topics.
        Err(AdminError::Invalid(_) | AdminError::NotFound(_)) => route_by_brokers(&admin, named).await?,
        Err(error) => return Err(error.into()),
    };
    if connection.json {
        let groups = rows.iter().map(|row| {
            json!({
                "broker_group": row.broker_group, "leader": row.leader, "queues": row.queues,
                "permission": row.permission, "type": output::message_type_name(row.message_type),
            })
        });
        return output::json(
            &json!({ "namespace": named.namespace, "topic": named.topic, "groups": groups.collect::<Vec<_>>() }),
        );
    }
    let rows = rows.into_iter().map(|row| {
        let kind = output::message_type_name(row.message_type).to_owned();
        let permission = output::permission_name(row.permission);
        vec![row.broker_group, row.leader, row.queues.to_string(), permission, kind]
    });
    output::table(&["BROKER GROUP", "LEADER", "QUEUES", "PERM", "TYPE"], rows.collect())
}

async fn route_by_brokers(admin: &Admin, named: &NamedTopic) -> Outcome<Vec<RouteRow>> {
    let (topics, groups) = tokio::join!(topics_of_all(admin, false), admin.broker_groups());
    let (mut topics, groups) = (topics?, groups?);
    let Some(found) = topics.remove(&(named.namespace.clone(), named.topic.clone())) else {
        return Err(Failure::not_found(format!(
            "topic {} does not exist",
            shown(&named.namespace, &named.topic)
        )));
    };
    let leader_of = |name: &str| {
        let group = groups.iter().find(|group| group.name == name)?;
        let leader = group.members.iter().find(|member| member.node_id == group.leader_id)?;
        Some(leader.client_address.clone())
    };
    let row = |(group, info): (String, cluster::TopicInfo)| RouteRow {
        leader: leader_of(&group).unwrap_or_default(),
        broker_group: group,
        queues: info.queues,
        permission: info.permission,
        message_type: info.message_type,
    };
    Ok(found.into_iter().map(row).collect())
}

pub(crate) async fn delete(connection: &Connection, named: &NamedTopic) -> Outcome {
    let admin = connection.admin()?;
    let mut deleted = Vec::new();
    for group in broker_groups(&admin, &[]).await? {
        let request = cluster::DeleteTopicRequest {
            group: group.clone(),
            namespace: named.namespace.clone(),
            name: named.topic.clone(),
        };
        match admin.delete_topic(request).await {
            Ok(true) => deleted.push(group),
            Ok(false) | Err(AdminError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let name = shown(&named.namespace, &named.topic);
    if deleted.is_empty() {
        return Err(Failure::not_found(format!("topic {name} does not exist")));
    }
    if connection.json {
        return output::json(&json!({ "topic": name, "deleted_in": deleted }));
    }
    output::line(format!("topic {name}: deleted in {}", deleted.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_known_by_name() {
        assert_eq!(message_type("FIFO"), Ok(2));
        assert_eq!(message_type("normal"), Ok(1));
        assert!(message_type("MESSAGE_TYPE_UNSPECIFIED").is_err());
        assert!(message_type("FIF").is_err());
    }
}
