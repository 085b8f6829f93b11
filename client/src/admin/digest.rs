//! Are the replicas of a group equal? A mark goes through the log; every member computes digests of what it has when
//! it applies the mark; here they are compared.

use std::time::Duration;

use mq_protocol::cluster;
use mq_protocol::cluster::broker_admin_client::BrokerAdminClient;
use mq_protocol::cluster::registry_client::RegistryClient;
use tokio::time::Instant;

use super::{Admin, AdminError, CHANGE_TIMEOUT, check, said, unanswered};
use crate::core::CallError;

const PAUSE: Duration = Duration::from_millis(20);

/// What one member computed.
#[derive(Debug, Clone)]
pub struct MemberDigest {
    /// Its name or address.
    pub node: String,
    /// Its parts in its order, or why there are none.
    pub parts: Result<Vec<cluster::DigestPart>, String>,
}

/// The first part in which two members differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Name of the part.
    pub part: String,
    /// A member that has one value, and that value.
    pub one: (String, String),
    /// A member that has another value, and that value.
    pub other: (String, String),
}

/// Outcome of a comparison.
#[derive(Debug, Clone)]
pub struct DigestReport {
    /// The group.
    pub group: String,
    /// Index of the mark.
    pub index: u64,
    /// What each member answered.
    pub members: Vec<MemberDigest>,
    /// The first difference.
    pub difference: Option<Difference>,
}

impl DigestReport {
    fn new(group: String, index: u64, members: Vec<MemberDigest>) -> Self {
        let difference = first_difference(&members);
        Self { group, index, members, difference }
    }

    /// All members answered, and all say the same.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.difference.is_none() && self.is_complete()
    }

    /// All members answered.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.members.is_empty() && self.members.iter().all(|member| member.parts.is_ok())
    }
}

fn first_difference(members: &[MemberDigest]) -> Option<Difference> {
    let mut answered = members.iter().filter_map(|member| Some((&member.node, member.parts.as_ref().ok()?)));
    let (first_node, first) = answered.next()?;
    answered.find_map(|(node, parts)| {
        let names = first.iter().chain(parts).map(|part| &part.name);
        let mut names: Vec<&String> = names.collect();
        names.dedup();
        names.into_iter().find_map(|name| {
            let (one, other) = (value(first, name), value(parts, name));
            (one != other).then(|| Difference {
                part: name.clone(),
                one: (first_node.clone(), one),
                other: (node.clone(), other),
            })
        })
    })
}

fn value(parts: &[cluster::DigestPart], name: &str) -> String {
    let part = parts.iter().find(|part| part.name == name);
    part.map_or_else(|| "absent".to_owned(), |part| format!("{} x {}", part.count, hex(&part.digest)))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Admin {
    /// Compares the members of a broker group.
    pub async fn digest(&self, group: &str) -> Result<DigestReport, AdminError> {
        let request = cluster::MarkDigestRequest { group: group.to_owned() };
        let mark = self
            .ask_group(group, |mut broker, core| {
                let request = core.identity.request(request.clone(), CHANGE_TIMEOUT);
                async move {
                    let response = broker.mark_digest(request).await?;
                    Ok(response.map(|answer| (answer.result.clone(), answer)))
                }
            })
            .await?;
        let groups = self.broker_groups().await?;
        let entry = groups.iter().find(|entry| entry.name == group);
        let members = entry.map(|entry| entry.members.clone()).unwrap_or_default();
        let request = cluster::ReadDigestRequest { group: group.to_owned(), mark: mark.mark };
        let asked = members.iter().map(|member| async {
            let ask = || async {
                let request = self.core.identity.request(request.clone(), CHANGE_TIMEOUT);
                let call =
                    |channel| async move { BrokerAdminClient::new(channel).read_digest(request).await };
                self.core.call(&member.api_address, CHANGE_TIMEOUT, call).await
            };
            let parts = self.parts(&member.api_address, ask).await;
            MemberDigest { node: member.node.clone(), parts }
        });
        Ok(DigestReport::new(group.to_owned(), mark.index, futures::future::join_all(asked).await))
    }

    /// Compares the name servers.
    pub async fn name_digest(&self) -> Result<DigestReport, AdminError> {
        let deadline = self.deadline()?;
        let mark = loop {
            let answer = self
                .ask_name_server(|mut registry, core| {
                    let request =
                        core.identity.request(cluster::MarkDigestRequest::default(), CHANGE_TIMEOUT);
                    async move { registry.mark_name_digest(request).await }
                })
                .await;
            match answer.and_then(|answer| check(answer.result.as_ref()).map(|()| answer)) {
                Err(AdminError::Unavailable(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(PAUSE).await
                }
                answer => break answer?,
            }
        };
        let group = self.name_group().await.ok_or_else(|| AdminError::Failed(said(0, "no name server")))?;
        let request = cluster::ReadDigestRequest { group: String::new(), mark: mark.mark };
        let asked = group.members.iter().map(|view| async {
            let address = &view.member.api_address;
            let ask = || async {
                let request = self.core.identity.request(request.clone(), CHANGE_TIMEOUT);
                let call =
                    |channel| async move { RegistryClient::new(channel).read_name_digest(request).await };
                self.core.call(address, CHANGE_TIMEOUT, call).await
            };
            MemberDigest { node: view.member.node.clone(), parts: self.parts(address, ask).await }
        });
        Ok(DigestReport::new(group.name.clone(), mark.index, futures::future::join_all(asked).await))
    }

    /// Asks one member until it has applied the mark or the time is over.
    async fn parts<R>(&self, address: &str, ask: impl Fn() -> R) -> Result<Vec<cluster::DigestPart>, String>
    where
        R: Future<Output = Result<cluster::ReadDigestResponse, CallError>>,
    {
        let deadline = self.deadline().map_err(|error| error.to_string())?;
        loop {
            let error = match ask().await {
                Ok(answer) => match check(answer.result.as_ref()) {
                    Ok(()) => return Ok(answer.parts),
                    Err(error) => error,
                },
                Err(error) => unanswered(error, address),
            };
            let not_yet = matches!(error, AdminError::NotFound(_) | AdminError::Unavailable(_));
            if !not_yet || Instant::now() >= deadline {
                return Err(error.to_string());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: &str, parts: &[(&str, u64, u8)]) -> MemberDigest {
        let part = |(name, count, byte): &(&str, u64, u8)| cluster::DigestPart {
            name: (*name).to_owned(),
            count: *count,
            digest: vec![*byte; 32].into(),
        };
        MemberDigest { node: node.to_owned(), parts: Ok(parts.iter().map(part).collect()) }
    }

    #[test]
    fn equal_members_are_equal() {
        let parts = [("frames", 3, 1), ("state/topics", 1, 2)];
        let report = DigestReport::new("a".into(), 9, vec![member("b1", &parts), member("b2", &parts)]);
        assert!(report.is_equal());
    }

    #[test]
    fn the_first_difference_is_named() {
        let one = member("b1", &[("frames", 3, 1), ("queue/1-0/0", 5, 2)]);
        let other = member("b2", &[("frames", 3, 1), ("queue/1-0/0", 4, 2)]);
        let report = DigestReport::new("a".into(), 9, vec![one.clone(), other]);
        let difference = report.difference.as_ref().expect("they differ");
        assert_eq!(difference.part, "queue/1-0/0");
        assert!(difference.one.1.starts_with("5 x ") && difference.other.1.starts_with("4 x "));
        let shorter = member("b3", &[("frames", 3, 1)]);
        let report = DigestReport::new("a".into(), 9, vec![one, shorter]);
        assert_eq!(report.difference.expect("a part is missing").other.1, "absent");
    }

    #[test]
    fn a_member_without_an_answer_is_not_equal() {
        let silent = MemberDigest { node: "b2".into(), parts: Err("refused".into()) };
        let report = DigestReport::new("a".into(), 9, vec![member("b1", &[("frames", 1, 1)]), silent]);
        assert!(report.difference.is_none() && !report.is_equal());
        assert!(!DigestReport::new("a".into(), 9, Vec::new()).is_equal());
    }
}
