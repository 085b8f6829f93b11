//! `transfer`: hands the leadership of a broker group to another member.

use clap::Args;
use serde_json::json;

use crate::arguments::Connection;
use crate::outcome::{Failure, Outcome};
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct TransferArguments {
    /// Broker group; the only one by default
    #[arg(long = "broker-group", default_value = "")]
    broker_group: String,
    /// Name or id of the member that is to lead; any that is current by default
    #[arg(long)]
    to: Option<String>,
}

pub(crate) async fn run(connection: &Connection, arguments: TransferArguments) -> Outcome {
    let admin = connection.admin()?;
    let groups = admin.broker_groups().await?;
    let mut named = groups
        .iter()
        .filter(|group| arguments.broker_group.is_empty() || group.name == arguments.broker_group);
    let group = match (named.next(), named.next()) {
        (Some(group), None) => group,
        (Some(_), Some(_)) => {
            return Err(Failure::wrong_use("several broker groups: name one by --broker-group"));
        }
        (None, _) => return Err(Failure::not_found(format!("broker group {}", arguments.broker_group))),
    };
    let target = match &arguments.to {
        None => 0,
        Some(to) => {
            let found =
                group.members.iter().find(|member| member.node == *to || member.node_id.to_string() == *to);
            let member =
                found.ok_or_else(|| Failure::not_found(format!("{} has no member {to}", group.name)))?;
            member.node_id
        }
    };
    let changed = admin.transfer_leadership(&group.name, target).await?;
    if connection.json {
        return output::json(&json!({ "broker_group": group.name, "target": target, "changed": changed }));
    }
    let what = if changed { "leadership is handed over" } else { "it leads already" };
    output::line(format!("{}: {what}", group.name))
}
