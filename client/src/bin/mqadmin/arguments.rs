//! Options that all commands share.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use clap::Args;
use mq_client::Client;
use mq_client::admin::Admin;

use crate::outcome::Outcome;

const LOCAL_NAME_SERVER: &str = "127.0.0.1:9876";
const LOCAL_BROKER: &str = "127.0.0.1:10911";
/// RocketMQ's name for it.
const NAME_SERVER_VARIABLE: &str = "NAMESRV_ADDR";

/// Whom to ask, and how to answer.
#[derive(Debug, Clone, Args)]
pub(crate) struct Connection {
    /// Name servers, host:port, several separated by `,` or `;` [environment: NAMESRV_ADDR] [default: the local
    /// ones, else a local broker]
    #[arg(short = 'n', long, global = true, value_name = "ADDRESSES")]
    pub(crate) namesrv: Option<String>,
    /// Brokers instead of name servers: their API addresses (10911)
    #[arg(long, global = true, value_name = "ADDRESSES")]
    pub(crate) broker: Option<String>,
    /// One JSON value (or one per line) instead of text for people
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Time for a call, retries included
    #[arg(long, global = true, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

impl Connection {
    pub(crate) fn client(&self) -> Outcome<Client> {
        let mut name_servers = split(self.namesrv.as_deref());
        let mut brokers = split(self.broker.as_deref());
        if name_servers.is_empty() && brokers.is_empty() {
            name_servers = split(std::env::var(NAME_SERVER_VARIABLE).ok().as_deref());
        }
        if name_servers.is_empty() && brokers.is_empty() {
            if listens(LOCAL_NAME_SERVER) {
                name_servers.push(LOCAL_NAME_SERVER.to_owned());
            } else {
                brokers.push(LOCAL_BROKER.to_owned());
            }
        }
        Ok(Client::builder().name_servers(name_servers).brokers(brokers).build()?)
    }

    pub(crate) fn admin(&self) -> Outcome<Admin> {
        Ok(self.client()?.admin().timeout(self.timeout))
    }
}

fn split(addresses: Option<&str>) -> Vec<String> {
    let parts = addresses.unwrap_or("").split([',', ';']).map(str::trim);
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn listens(address: &str) -> bool {
    let address: Result<SocketAddr, _> = address.parse();
    address.is_ok_and(|address| TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split_at_both_signs() {
        assert_eq!(split(Some("a:1;b:2, c:3;")), ["a:1", "b:2", "c:3"]);
        assert!(split(None).is_empty());
    }
}
