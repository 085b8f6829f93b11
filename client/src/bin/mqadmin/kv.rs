//! `kv`: settings that the name servers keep.

use clap::{Args, Subcommand};
use mq_client::admin::KvChange;
use mq_protocol::cluster::{KvEntry, KvEvent};
use serde_json::json;

use crate::arguments::Connection;
use crate::outcome::{Failure, Outcome};
use crate::output;

#[derive(Debug, Subcommand)]
pub(crate) enum KvCommand {
    /// Puts a value; prints the revision that the change made
    Put(PutKv),
    /// Prints a value
    Get(NamedKv),
    /// Lists keys, all at one revision
    List(ListKv),
    /// Deletes a key
    Delete(DeleteKv),
    /// Prints changes as they come, until it is interrupted
    Watch(WatchKv),
}

#[derive(Debug, Args)]
pub(crate) struct NamedKv {
    /// Namespace
    #[arg(short = 's', long)]
    pub(crate) namespace: String,
    /// Key
    #[arg(short = 'k', long)]
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct PutKv {
    #[command(flatten)]
    pub(crate) named: NamedKv,
    /// Value
    #[arg(short = 'v', long)]
    pub(crate) value: String,
    /// Only if this is the key's revision; 0: only if there is no such key
    #[arg(long)]
    pub(crate) expect: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteKv {
    #[command(flatten)]
    pub(crate) named: NamedKv,
    /// Only if this is the key's revision
    #[arg(long)]
    pub(crate) expect: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct ListKv {
    /// Namespace; all by default
    #[arg(short = 's', long, default_value = "")]
    namespace: String,
}

#[derive(Debug, Args)]
pub(crate) struct WatchKv {
    /// Namespace; all by default
    #[arg(short = 's', long, default_value = "")]
    namespace: String,
    /// Only keys that begin so
    #[arg(long, default_value = "")]
    prefix: String,
    /// The last revision that is known; from now on by default
    #[arg(long)]
    after: Option<u64>,
}

pub(crate) async fn run(connection: &Connection, command: KvCommand) -> Outcome {
    match command {
        KvCommand::Put(put) => self::put(connection, &put).await,
        KvCommand::Get(named) => get(connection, &named).await,
        KvCommand::List(list) => self::list(connection, &list).await,
        KvCommand::Delete(delete) => self::delete(connection, &delete).await,
        KvCommand::Watch(watch) => self::watch(connection, watch).await,
    }
}

fn text(entry: &KvEntry) -> String {
    String::from_utf8_lossy(&entry.value).into_owned()
}

fn as_json(entry: &KvEntry) -> serde_json::Value {
    let KvEntry { namespace, key, value: _, revision, created } = entry;
    json!({ "namespace": namespace, "key": key, "value": text(entry), "revision": revision, "created": created })
}

pub(crate) async fn put(connection: &Connection, put: &PutKv) -> Outcome {
    let PutKv { named: NamedKv { namespace, key }, value, expect } = put;
    let change = connection.admin()?.put_kv(namespace, key, value.clone(), *expect).await?;
    done(connection, &put.named, change)
}

pub(crate) async fn delete(connection: &Connection, delete: &DeleteKv) -> Outcome {
    let DeleteKv { named: NamedKv { namespace, key }, expect } = delete;
    let change = connection.admin()?.delete_kv(namespace, key, *expect).await?;
    done(connection, &delete.named, change)
}

fn done(connection: &Connection, named: &NamedKv, change: KvChange) -> Outcome {
    let NamedKv { namespace, key } = named;
    match change {
        KvChange::Done { changed, revision } if connection.json => output::json(
            &json!({ "namespace": namespace, "key": key, "changed": changed, "revision": revision }),
        ),
        KvChange::Done { changed: true, revision } => {
            output::line(format!("{namespace}/{key}: revision {revision}"))
        }
        KvChange::Done { changed: false, .. } => output::line(format!("{namespace}/{key}: there is none")),
        KvChange::Conflict { current: None } => {
            Err(Failure::failed(format!("{namespace}/{key}: there is no such key")))
        }
        KvChange::Conflict { current: Some(entry) } => {
            let (revision, value) = (entry.revision, text(&entry));
            Err(Failure::failed(format!("{namespace}/{key}: has revision {revision}, value {value:?}")))
        }
    }
}

async fn get(connection: &Connection, named: &NamedKv) -> Outcome {
    let entry = connection.admin()?.get_kv(&named.namespace, &named.key).await?;
    if connection.json { output::json(&as_json(&entry)) } else { output::line(&entry.value) }
}

async fn list(connection: &Connection, list: &ListKv) -> Outcome {
    let listing = connection.admin()?.list_kv(&list.namespace).await?;
    if connection.json {
        let entries: Vec<_> = listing.entries.iter().map(as_json).collect();
        return output::json(&json!({ "revision": listing.revision, "entries": entries }));
    }
    let row = |entry: &KvEntry| {
        vec![entry.namespace.clone(), entry.key.clone(), entry.revision.to_string(), text(entry)]
    };
    output::table(&["NAMESPACE", "KEY", "REVISION", "VALUE"], listing.entries.iter().map(row).collect())
}

/// Goes on at another name server, from the last revision, when one goes away.
async fn watch(connection: &Connection, watch: WatchKv) -> Outcome {
    let admin = connection.admin()?;
    let mut after = watch.after;
    loop {
        let mut stream = admin.watch_kv(&watch.namespace, &watch.prefix, after).await?;
        while let Ok(Some(message)) = stream.message().await {
            if let Some(result) = message.result {
                if result.code == mq_protocol::v2::Code::NotFound as i32 {
                    return Err(Failure::not_found(result.message));
                }
                break;
            }
            message.events.iter().try_for_each(|event| show(connection, event))?;
            after = Some(message.revision);
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

fn show(connection: &Connection, event: &KvEvent) -> Outcome {
    let entry = event.entry.clone().unwrap_or_default();
    if connection.json {
        let mut shown = as_json(&entry);
        shown["deleted"] = event.deleted.into();
        return output::json(&shown);
    }
    let KvEntry { namespace, key, revision, .. } = &entry;
    let what = if event.deleted { "deleted".to_owned() } else { format!("= {}", text(&entry)) };
    output::line(format!("{revision} {namespace}/{key} {what}"))
}
