//! `group`: create, list, delete subscription groups.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use futures::{StreamExt, TryStreamExt};
use mq_client::admin::AdminError;
use mq_protocol::cluster;
use serde_json::json;

use crate::arguments::Connection;
use crate::input::TableFile;
use crate::outcome::{Failure, Outcome};
use crate::output;
use crate::topics::{broker_groups, shown};

const AT_ONCE: usize = 16;

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// Creates a subscription group, or changes what is named of one
    Create(CreateGroup),
    /// Lists the subscription groups of all broker groups
    List,
    /// Deletes a subscription group with its progress
    Delete(NamedGroup),
}

#[derive(Debug, Args)]
pub(crate) struct NamedGroup {
    /// Name of the subscription group
    #[arg(short = 'g', long = "group")]
    pub(crate) group: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    pub(crate) namespace: String,
}

#[derive(Debug, Args)]
pub(crate) struct CreateGroup {
    /// Name of the subscription group
    #[arg(short = 'g', long = "group", required_unless_present = "from", conflicts_with = "from")]
    pub(crate) group: Option<String>,
    /// A file with the columns name, ordered and max_attempts, separated by tabs
    #[arg(long, value_name = "FILE.tsv")]
    pub(crate) from: Option<PathBuf>,
    /// Delivers in order
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) ordered: Option<bool>,
    /// Deliveries of a message including the first
    #[arg(long)]
    pub(crate) max_attempts: Option<u32>,
    /// Pauses before repeated deliveries, for example 1s,5s,10s; the last one repeats
    #[arg(long, value_delimiter = ',', value_parser = humantime::parse_duration)]
    pub(crate) retry_pauses: Vec<Duration>,
    /// Allows or forbids consuming
    #[arg(long, value_name = "BOOL")]
    pub(crate) consume_enabled: Option<bool>,
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

pub(crate) async fn run(connection: &Connection, command: GroupCommand) -> Outcome {
    match command {
        GroupCommand::Create(create) => run_create(connection, create).await,
        GroupCommand::List => list(connection).await,
        GroupCommand::Delete(named) => delete(connection, &named).await,
    }
}

pub(crate) async fn run_create(connection: &Connection, create: CreateGroup) -> Outcome {
    let admin = connection.admin()?;
    let groups = broker_groups(&admin, &create.broker_groups).await?;
    let wanted = wanted(&create)?;
    let puts = wanted.iter().flat_map(|wanted| groups.iter().map(move |group| (wanted, group)));
    let done: Vec<_> = futures::stream::iter(puts.map(|(wanted, group)| {
        let request = cluster::PutSubscriptionGroupRequest { group: group.clone(), ..wanted.clone() };
        let admin = &admin;
        async move { Ok::<_, AdminError>((wanted, group, admin.put_subscription_group(request).await?)) }
    }))
    .buffered(AT_ONCE)
    .try_collect()
    .await?;
    for (wanted, group, changed) in done {
        if connection.json {
            output::json(&json!({ "group": wanted.name, "broker_group": group, "changed": changed }))?;
        } else {
            let what = if changed { "created or changed" } else { "unchanged" };
            output::line(format!("subscription group {} in {group}: {what}", wanted.name))?;
        }
    }
    Ok(())
}

fn wanted(create: &CreateGroup) -> Outcome<Vec<cluster::PutSubscriptionGroupRequest>> {
    let pauses = create.retry_pauses.iter();
    let base = cluster::PutSubscriptionGroupRequest {
        group: String::new(),
        namespace: create.namespace.clone(),
        name: create.group.clone().unwrap_or_default(),
        ordered: create.ordered,
        max_attempts: create.max_attempts,
        retry_pauses_ms: pauses.map(|pause| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)).collect(),
        consume_enabled: create.consume_enabled,
        create_only: create.create_only,
    };
    let Some(path) = &create.from else { return Ok(vec![base]) };
    let file = TableFile::read(path)?;
    let rows = file.rows().map(|row| {
        let number = |cell: &str| cell.parse().map_err(|_| format!("`{cell}` is not a number"));
        let truth = |cell: &str| cell.parse().map_err(|_| format!("`{cell}` is neither true nor false"));
        Ok(cluster::PutSubscriptionGroupRequest {
            name: row.required("name")?.to_owned(),
            ordered: row.parsed("ordered", truth)?.or(base.ordered),
            max_attempts: row.parsed("max_attempts", number)?.or(base.max_attempts),
            ..base.clone()
        })
    });
    rows.collect()
}

async fn list(connection: &Connection) -> Outcome {
    let admin = connection.admin()?;
    let mut rows = Vec::new();
    let mut values = Vec::new();
    for broker_group in broker_groups(&admin, &[]).await? {
        for info in admin.subscription_groups(&broker_group).await? {
            values.push(json!({
                "namespace": info.namespace, "group": info.name, "broker_group": broker_group, "id": info.id,
                "ordered": info.ordered, "max_attempts": info.max_attempts,
                "retry_pauses_ms": info.retry_pauses_ms, "consume_enabled": info.consume_enabled,
            }));
            rows.push(vec![
                shown(&info.namespace, &info.name),
                info.ordered.to_string(),
                info.max_attempts.to_string(),
                info.consume_enabled.to_string(),
                broker_group.clone(),
            ]);
        }
    }
    if connection.json {
        return output::json(&json!(values));
    }
    output::table(&["GROUP", "ORDERED", "MAX ATTEMPTS", "CONSUME", "BROKER GROUP"], rows)
}

pub(crate) async fn delete(connection: &Connection, named: &NamedGroup) -> Outcome {
    let admin = connection.admin()?;
    let mut deleted = Vec::new();
    for group in broker_groups(&admin, &[]).await? {
        let request = cluster::DeleteSubscriptionGroupRequest {
            group: group.clone(),
            namespace: named.namespace.clone(),
            name: named.group.clone(),
        };
        match admin.delete_subscription_group(request).await {
            Ok(true) => deleted.push(group),
            Ok(false) | Err(AdminError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let name = shown(&named.namespace, &named.group);
    if deleted.is_empty() {
        return Err(Failure::not_found(format!("subscription group {name} does not exist")));
    }
    if connection.json {
        return output::json(&json!({ "group": name, "deleted_in": deleted }));
    }
    output::line(format!("subscription group {name}: deleted in {}", deleted.join(", ")))
}
