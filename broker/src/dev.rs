//! `mqbroker dev`: the same broker with one member, its settings made here instead of read from a file.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mq_broker::config::{GroupSection, MemberSection};
use mq_broker::{Broker, Config};

use crate::NotStarted;

/// Options of `mqbroker dev`.
#[derive(Debug, Args)]
pub struct Dev {
    /// Data folder.
    #[arg(long, value_name = "DIR", default_value = "mq-dev-data")]
    data: PathBuf,
    /// Keeps data in a temporary folder and removes it at the end.
    #[arg(long, conflicts_with = "data")]
    memory: bool,
    /// Host that routes name.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    advertise: String,
    /// Clients speak gRPC here; port 0 = any free one, as for the others.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8081")]
    client_listen: String,
    /// Nodes and administrators.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:10911")]
    api_listen: String,
    /// Raft.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:10912")]
    raft_listen: String,
    /// `/metrics`.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:5557")]
    metrics_listen: String,
    /// `/livez` and `/readyz`.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8082")]
    admin_listen: String,
}

/// Settings, and the folder that goes with the process.
#[derive(Debug)]
pub struct Prepared {
    /// The settings.
    pub config: Config,
    /// Removed when dropped.
    _temporary: Option<tempfile::TempDir>,
}

impl Dev {
    /// Makes the settings.
    pub fn prepare(self) -> Result<Prepared, NotStarted> {
        let temporary = match self.memory {
            true => {
                let made = tempfile::Builder::new().prefix("mq-dev-").tempdir();
                Some(made.map_err(|source| NotStarted::System { what: "no temporary folder", source })?)
            }
            false => None,
        };
        let data = temporary.as_ref().map_or(self.data, |folder| folder.path().to_owned());
        let own = |listen: &str| {
            let port = listen.rsplit_once(':').map_or("0", |(_, port)| port);
            format!("{}:{port}", self.advertise)
        };
        let member = MemberSection {
            node: "dev".into(),
            raft: own(&self.raft_listen),
            api: own(&self.api_listen),
            client: own(&self.client_listen),
        };
        let mut config = Config {
            cluster: "dev".into(),
            node: "dev".into(),
            data,
            client_listen: self.client_listen,
            api_listen: self.api_listen,
            raft_listen: self.raft_listen,
            metrics_listen: self.metrics_listen,
            admin_listen: self.admin_listen,
            auto_create_topics: true,
            auto_create_groups: true,
            ..Config::default()
        };
        config.broker.group = vec![GroupSection { name: "broker-dev".into(), members: vec![member] }];
        config.log.segment_size = 256 << 20;
        Ok(Prepared { config, _temporary: temporary })
    }
}

impl Prepared {
    /// Says where everything is, once it serves.
    pub async fn announce(&self, broker: &Broker, config: &Config) {
        let ready = broker.readiness();
        while !ready().ready || !broker.groups().iter().all(|group| group.leads()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let endpoint = broker.client_address();
        println!(
            "endpoint   {endpoint}    (gRPC, RocketMQ 5 clients; topics and groups are made at first use)"
        );
        println!("admin      {}    (mqadmin --broker)", broker.api_address());
        println!(
            "probes     http://{}/readyz    metrics http://{}/metrics",
            config.admin_listen, config.metrics_listen
        );
        println!("data       {}", config.data.display());
    }
}
