//! `digest`: are the replicas of every group equal?

use clap::Args;
use mq_client::admin::{AdminError, DigestReport};
use serde_json::{Value, json};

use crate::arguments::Connection;
use crate::outcome::{Failure, Outcome};
use crate::output;
use crate::topics::broker_groups;

#[derive(Debug, Args)]
pub(crate) struct DigestArguments {
    /// Broker groups; all by default
    #[arg(long = "broker-group", value_delimiter = ',')]
    broker_groups: Vec<String>,
    /// Leaves the name servers out
    #[arg(long)]
    no_name_servers: bool,
    /// Shows every part
    #[arg(long)]
    parts: bool,
}

pub(crate) async fn run(connection: &Connection, arguments: DigestArguments) -> Outcome {
    let admin = connection.admin()?;
    let mut reports = Vec::new();
    if !arguments.no_name_servers && arguments.broker_groups.is_empty() {
        match admin.name_digest().await {
            Ok(report) => reports.push(report),
            // Brokers are named directly: there is no name server to compare.
            Err(AdminError::Invalid(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for group in broker_groups(&admin, &arguments.broker_groups).await? {
        reports.push(admin.digest(&group).await?);
    }
    if connection.json {
        output::json(&json!(reports.iter().map(as_json).collect::<Vec<_>>()))?;
    } else {
        reports.iter().try_for_each(|report| show(report, arguments.parts))?;
    }
    verdict(&reports)
}

fn verdict(reports: &[DigestReport]) -> Outcome {
    let named = |keep: fn(&DigestReport) -> bool| {
        let names: Vec<_> =
            reports.iter().filter(|report| keep(report)).map(|report| report.group.as_str()).collect();
        names.join(", ")
    };
    let different = named(|report| report.difference.is_some());
    if !different.is_empty() {
        return Err(Failure::failed(format!("replicas differ: {different}")));
    }
    let incomplete = named(|report| !report.is_complete());
    if !incomplete.is_empty() {
        return Err(Failure::unavailable(format!("not all members answered: {incomplete}")));
    }
    Ok(())
}

fn show(report: &DigestReport, parts: bool) -> Outcome {
    let answered = report.members.iter().filter(|member| member.parts.is_ok()).count();
    let count = report.members.iter().find_map(|member| member.parts.as_ref().ok()).map_or(0, Vec::len);
    let word = match (&report.difference, report.is_complete()) {
        (Some(_), _) => "DIFFERENT",
        (None, true) => "equal",
        (None, false) => "incomplete",
    };
    output::line(format!(
        "{}: {word} up to index {}, {answered} of {} members, {count} parts",
        report.group,
        report.index,
        report.members.len()
    ))?;
    for member in &report.members {
        if let Err(reason) = &member.parts {
            output::line(format!("  {}: {reason}", member.node))?;
        }
    }
    if let Some(difference) = &report.difference {
        output::line(format!("  first difference: {}", difference.part))?;
        for (node, value) in [&difference.one, &difference.other] {
            output::line(format!("    {node}: {value}"))?;
        }
    }
    if parts && let Some(Ok(parts)) = report.members.first().map(|member| &member.parts) {
        let rows = parts.iter().map(|part| {
            let hex: String = part.digest.iter().map(|byte| format!("{byte:02x}")).collect();
            vec![part.name.clone(), part.count.to_string(), hex]
        });
        output::table(&["PART", "COUNT", "SHA-256"], rows.collect())?;
    }
    Ok(())
}

fn as_json(report: &DigestReport) -> Value {
    let members = report.members.iter().map(|member| match &member.parts {
        Ok(parts) => json!({
            "node": member.node,
            "parts": parts.iter().map(|part| json!({
                "name": part.name, "count": part.count,
                "digest": part.digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            })).collect::<Vec<_>>(),
        }),
        Err(reason) => json!({ "node": member.node, "error": reason }),
    });
    json!({
        "group": report.group,
        "index": report.index,
        "equal": report.is_equal(),
        "difference": report.difference.as_ref().map(|difference| json!({
            "part": difference.part,
            "one": { "node": difference.one.0, "value": difference.one.1 },
            "other": { "node": difference.other.0, "value": difference.other.1 },
        })),
        "members": members.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use mq_client::admin::{Difference, MemberDigest};

    use super::*;

    fn report(
        difference: Option<Difference>,
        parts: Result<Vec<mq_protocol::cluster::DigestPart>, String>,
    ) -> DigestReport {
        let members = vec![MemberDigest { node: "b1".into(), parts }];
        DigestReport { group: "a".into(), index: 1, members, difference }
    }

    #[test]
    fn different_is_1_and_incomplete_is_4() {
        assert_eq!(verdict(&[report(None, Ok(Vec::new()))]), Ok(()));
        let difference = Difference {
            part: "p".into(),
            one: (String::new(), String::new()),
            other: (String::new(), String::new()),
        };
        let different = report(Some(difference), Ok(Vec::new()));
        assert_eq!(verdict(&[different]).expect_err("different").exit_code(), 1);
        let incomplete = report(None, Err("refused".into()));
        assert_eq!(verdict(&[incomplete]).expect_err("incomplete").exit_code(), 4);
    }
}
