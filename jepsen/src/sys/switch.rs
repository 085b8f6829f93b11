//! The network of the sandbox: one namespace per site on a bridge, and a table of directed pairs that the bridge
//! does not pass. A cut loses packets silently; a connect hangs, as on a real network.

use std::time::Duration;

use anyhow::Context;
use tokio::process::Command;

use super::tool;

/// First three numbers of all addresses.
pub const NETWORK: &str = "198.18.0";
/// Site of the suite itself, which the cuts between nodes do not touch.
const OWN: u8 = 100;
const TABLE: &str = "mqjepsen";

/// The network; there is one per sandbox.
#[derive(Debug)]
pub struct Switch {
    sites: u8,
}

impl Switch {
    /// Makes bridge, sites 1 to `sites`, and the empty table of cuts.
    pub fn make(sites: u8) -> anyhow::Result<Self> {
        tool("ip", &["link", "add", "mq0", "type", "bridge"])?;
        tool("ip", &["addr", "add", &format!("{NETWORK}.{OWN}/24"), "dev", "mq0"])?;
        tool("ip", &["link", "set", "mq0", "up"])?;
        for site in 1..=sites {
            let (name, port) = (name(site), format!("port{site}"));
            tool("ip", &["netns", "add", &name])?;
            tool("ip", &["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
            tool("ip", &["link", "set", &port, "master", "mq0", "up"])?;
            tool("ip", &["-n", &name, "link", "set", "lo", "up"])?;
            tool("ip", &["-n", &name, "addr", "add", &format!("{NETWORK}.{site}/24"), "dev", "eth0"])?;
            tool("ip", &["-n", &name, "link", "set", "eth0", "up"])?;
        }
        let rules = format!(
            "add table bridge {TABLE}; \
             add set bridge {TABLE} pairs {{ type ipv4_addr . ipv4_addr; }}; \
             add chain bridge {TABLE} passing {{ type filter hook forward priority 0; policy accept; }}; \
             add rule bridge {TABLE} passing ether type ip ip saddr . ip daddr @pairs counter drop"
        );
        tool("nft", &[rules])?;
        Ok(Self { sites })
    }

    /// Nothing passes from one site to the other any more, in this direction.
    pub fn cut_one_way(&self, from: u8, to: u8) -> anyhow::Result<()> {
        let pair = format!("{{ {NETWORK}.{from} . {NETWORK}.{to} }}");
        tool("nft", &["add", "element", "bridge", TABLE, "pairs", &pair]).map(drop)
    }

    /// Cuts both directions.
    pub fn cut(&self, a: u8, b: u8) -> anyhow::Result<()> {
        self.cut_one_way(a, b)?;
        self.cut_one_way(b, a)
    }

    /// Cuts a site off from all other sites; this suite still reaches it.
    pub fn isolate(&self, site: u8) -> anyhow::Result<()> {
        (1..=self.sites).filter(|other| *other != site).try_for_each(|other| self.cut(site, other))
    }

    /// Passes everything between a site and all others again, also to those that are cut off themselves.
    pub fn heal(&self, site: u8) -> anyhow::Result<()> {
        for other in (1..=self.sites).filter(|other| *other != site) {
            for (from, to) in [(site, other), (other, site)] {
                let pair = format!("{{ {NETWORK}.{from} . {NETWORK}.{to} }}");
                if tool("nft", &["get", "element", "bridge", TABLE, "pairs", &pair]).is_ok() {
                    tool("nft", &["delete", "element", "bridge", TABLE, "pairs", &pair])?;
                }
            }
        }
        Ok(())
    }

    /// Passes everything again.
    pub fn heal_all(&self) -> anyhow::Result<()> {
        tool("nft", &["flush", "set", "bridge", TABLE, "pairs"]).map(drop)
    }

    /// Packets dropped so far.
    pub fn dropped(&self) -> anyhow::Result<u64> {
        let text = tool("nft", &["list", "chain", "bridge", TABLE, "passing"])?;
        let count = text.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
        count.and_then(|count| count.parse().ok()).context("nft prints no counter")
    }

    /// The probe of a cut: can a process of one site connect to a port of another? Half a second decides.
    pub async fn connects(&self, from: u8, to: u8, port: u16) -> anyhow::Result<bool> {
        let connect = format!("exec 3<>/dev/tcp/{NETWORK}.{to}/{port}");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", name(from))).args(["bash", "-c", &connect]);
        command.stderr(std::process::Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().context("cannot run nsenter")?;
        match tokio::time::timeout(Duration::from_millis(500), child.wait()).await {
            Ok(status) => Ok(status?.success()),
            Err(_) => Ok(false),
        }
    }
}

/// Name of a site's network namespace.
pub fn name(site: u8) -> String {
    format!("site{site}")
}
