//! `status`: every member of every group, by its own word.

use mq_client::admin::{ClusterStatus, GroupView, MemberView};
use serde_json::{Value, json};

use crate::arguments::Connection;
use crate::outcome::{Failure, Outcome};
use crate::output;

pub(crate) async fn run(connection: &Connection) -> Outcome {
    let status = connection.admin()?.cluster_status().await?;
    let complaints = status.complaints();
    if connection.json {
        output::json(&as_json(&status, &complaints))?;
    } else {
        let heading =
            ["GROUP", "NODE", "STATE", "TERM", "LAST", "COMMITTED", "APPLIED", "LAG", "ROLE", "ADDRESS"];
        let rows =
            groups(&status).flat_map(|group| group.members.iter().map(|view| row(group, view))).collect();
        output::table(&heading, rows)?;
    }
    if complaints.is_empty() { Ok(()) } else { Err(Failure::unhealthy(complaints.join("; "))) }
}

fn groups(status: &ClusterStatus) -> impl Iterator<Item = &GroupView> {
    status.name_group.iter().chain(&status.broker_groups)
}

fn address(view: &MemberView) -> &str {
    let member = &view.member;
    if member.client_address.is_empty() { &member.api_address } else { &member.client_address }
}

fn row(group: &GroupView, view: &MemberView) -> Vec<String> {
    let mut row = vec![group.name.clone(), view.member.node.clone()];
    match &view.status {
        Ok(status) => {
            let leads = group.leader().is_some_and(|leader| std::ptr::eq(leader, view));
            row.push(if leads { format!("{} *", status.state) } else { status.state.clone() });
            let numbers = [status.term, status.last_index, status.committed_index, status.applied_index];
            row.extend(numbers.iter().map(u64::to_string));
            row.push(group.lag(view).map_or_else(|| "?".to_owned(), |lag| lag.to_string()));
        }
        Err(_) => {
            row.push("no answer".to_owned());
            row.extend(std::iter::repeat_n("?".to_owned(), 5));
        }
    }
    row.extend([view.member.role.clone(), address(view).to_owned()]);
    row
}

fn as_json(status: &ClusterStatus, complaints: &[String]) -> Value {
    json!({
        "healthy": complaints.is_empty(),
        "complaints": complaints,
        "name_group": status.name_group.as_ref().map(group_json),
        "broker_groups": status.broker_groups.iter().map(group_json).collect::<Vec<_>>(),
    })
}

fn group_json(group: &GroupView) -> Value {
    let leader = group.leader();
    json!({
        "name": group.name,
        "leader": leader.map(|leader| leader.member.node.clone()),
        "term": leader.and_then(|leader| leader.status.as_ref().ok()).map(|status| status.term),
        "members": group.members.iter().map(|view| member_json(group, view)).collect::<Vec<_>>(),
    })
}

fn member_json(group: &GroupView, view: &MemberView) -> Value {
    let member = &view.member;
    let mut value = json!({
        "node": member.node,
        "node_id": member.node_id,
        "role": member.role,
        "voter": member.voter,
        "api_address": member.api_address,
        "client_address": member.client_address,
    });
    let own = match &view.status {
        Ok(status) => json!({
            "state": status.state,
            "waiting_for": status.waiting_for,
            "group_uuid": status.group_uuid,
            "term": status.term,
            "leader_id": status.leader_id,
            "leader_ready": status.leader_ready,
            "last": status.last_index,
            "committed": status.committed_index,
            "applied": status.applied_index,
            "flushed": status.flushed_index,
            "log_start": status.log_start,
            "log_end": status.log_end,
            "lag": group.lag(view),
        }),
        Err(reason) => json!({ "state": "no answer", "error": reason }),
    };
    if let (Some(value), Some(own)) = (value.as_object_mut(), own.as_object()) {
        value.extend(own.clone());
    }
    value
}
