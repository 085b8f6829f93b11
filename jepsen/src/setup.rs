//! What a run needs in the cluster and on the disk before it starts.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use mq_protocol::cluster::broker_admin_client::BrokerAdminClient;
use mq_protocol::cluster::{AdminResult, PutSubscriptionGroupRequest, PutTopicRequest};
use tonic::transport::Endpoint;

use crate::cluster::Cluster;

/// The broker group that `deploy/cluster.sh` makes.
pub const BROKER_GROUP: &str = "broker-a";
const OK: i32 = 20_000;

/// Creates a topic and subscription groups, or leaves them as they are; tries again while there is no leader.
pub async fn topic_and_groups(
    cluster: &Cluster,
    topic: &str,
    queues: u32,
    groups: &[&str],
) -> anyhow::Result<()> {
    let mut problem = String::new();
    for attempt in 0..60u32 {
        let (_, address) = &cluster.brokers[attempt as usize % cluster.brokers.len()];
        match put(address, topic, queues, groups).await {
            Ok(()) => return Ok(()),
            Err(error) => problem = format!("{error:#}"),
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    bail!("topic {topic} cannot be created: {problem}");
}

async fn put(address: &str, topic: &str, queues: u32, groups: &[&str]) -> anyhow::Result<()> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(Duration::from_millis(500))
        .timeout(Duration::from_secs(5));
    let mut client = BrokerAdminClient::new(endpoint.connect().await.context(address.to_owned())?);
    let request = PutTopicRequest {
        group: BROKER_GROUP.into(),
        name: topic.into(),
        queues: Some(queues),
        ..Default::default()
    };
    done(client.put_topic(request).await?.into_inner())?;
    for group in groups {
        let request = PutSubscriptionGroupRequest {
            group: BROKER_GROUP.into(),
            name: (*group).into(),
            ..Default::default()
        };
        done(client.put_subscription_group(request).await?.into_inner())?;
    }
    Ok(())
}

fn done(result: AdminResult) -> anyhow::Result<()> {
    if result.code == OK {
        return Ok(());
    }
    bail!("{} {}", result.code, result.message)
}

/// Writes a file that must not exist yet.
pub fn write_new(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    file.and_then(|mut file| file.write_all(bytes))
        .with_context(|| format!("cannot write {}", path.display()))
}
