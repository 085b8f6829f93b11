//! Every file of a data folder that was really used, replaced by something bad: the node refuses with the file's name, or
//! it serves exactly what it served before. Never a panic, never silent loss.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{Client, deps, dev, digests, message, put_topic, receive, start};
use mq_broker::{Broker, Config};
use mq_protocol::cluster::DigestPart;
use mq_protocol::v2;
use mq_runtime::shutdown::Shutdown;

#[derive(Clone, Copy, Debug)]
enum Bad {
    Missing,
    Empty,
    Random,
    Folder,
    /// The file of that name of another node.
    Foreign,
    /// What the file was before the newest checkpoint.
    Older,
}

const ALL: [Bad; 6] = [Bad::Missing, Bad::Empty, Bad::Random, Bad::Folder, Bad::Foreign, Bad::Older];

/// Everything that the node serves, but the log, which gets a blank entry from each new term.
async fn served(config: &Config) -> BTreeMap<String, DigestPart> {
    let mut parts = digests(std::slice::from_ref(config)).await.remove(0);
    parts.remove("log");
    parts
}

/// Sends, receives, acks.
async fn use_it(config: &Config, round: u8) {
    let client = Client::of(config);
    for number in 0..6_u8 {
        client.store(message("t", vec![round, number, 7])).await;
    }
    let (_, got) = client.receive(receive("g", "t", 300)).await;
    assert!(!got.is_empty(), "something is in flight");
    client.ack("g", &got[0]).await;
}

/// One receive of a group that knows nothing yet.
async fn bodies(config: &Config) -> Vec<Vec<u8>> {
    let (_, got) = Client::of(config).receive(receive("new", "t", 200)).await;
    got.into_iter().map(|message| message.body.to_vec()).collect()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("copied");
        }
    }
}

/// Every file below `root`, relative to it.
fn files(root: &Path, below: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(root.join(below)).expect("a folder") {
        let entry = entry.expect("an entry");
        let path = below.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            files(root, &path, found);
        } else {
            found.push(path);
        }
    }
}

/// Replaces the file; false if there is nothing to replace it by.
fn replace(data: &Path, file: &Path, bad: Bad, older: &Path, foreign: &Path) -> bool {
    let path = data.join(file);
    let len = usize::try_from(std::fs::metadata(&path).expect("there").len()).expect("small");
    let before = std::fs::read(&path).expect("read");
    std::fs::remove_file(&path).expect("removed");
    let bytes = match bad {
        Bad::Missing => return true,
        Bad::Folder => {
            std::fs::create_dir(&path).expect("a folder");
            return true;
        }
        Bad::Empty => Some(Vec::new()),
        Bad::Random => Some((0..len.max(64)).map(|_| mq_runtime::random::u64() as u8).collect()),
        Bad::Foreign => std::fs::read(foreign.join(file)).ok(),
        Bad::Older => std::fs::read(older.join(file)).ok(),
    };
    let Some(bytes) = bytes.filter(|bytes| *bytes != before) else { return false };
    #[expect(clippy::disallowed_methods, reason = "the damage is done behind the file layer's back")]
    std::fs::write(&path, bytes).expect("written");
    true
}

/// What a node serves: digests of everything, and the bodies that a new subscription group gets.
struct Served {
    parts: BTreeMap<String, DigestPart>,
    bodies: Vec<Vec<u8>>,
}

/// Starts the node: what it serves, or why it refused.
async fn outcome(config: &Config) -> Result<Served, String> {
    let shutdown = Shutdown::new();
    let broker = Broker::start(config.clone(), deps(), shutdown.clone()).await.map_err(|e| e.to_string())?;
    let ready = async {
        while !broker.readiness()().ready || !broker.groups().iter().all(|group| group.leads()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let token = shutdown.token();
    let outcome = tokio::select! {
        () = token.cancelled() => Err(shutdown.failure().map(|f| f.reason).unwrap_or_default()),
        () = ready => Ok(Served { parts: served(config).await, bodies: bodies(config).await }),
        () = tokio::time::sleep(Duration::from_secs(15)) => panic!("neither refused nor ready within 15 s"),
    };
    broker.kill().await;
    outcome
}

/// A refusal has to name the file, as it is or within its group, or a folder of the group that it lies in.
fn names(why: &str, file: &Path) -> bool {
    let within = file.ancestors().take_while(|path| path.components().count() >= 2);
    let in_group: PathBuf = file.components().skip(1).collect();
    within.chain([file, &in_group]).any(|path| why.contains(&path.display().to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_file_of_the_data_folder_replaced_is_refused_by_name_or_costs_nothing() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = dev(folder.path());
    let (used, older) = (folder.path().join("used"), folder.path().join("older"));
    for round in 0..2 {
        let broker = start(std::slice::from_ref(&config)).await.remove(0);
        if round == 0 {
            put_topic(&config, "t", v2::MessageType::Normal).await;
        }
        use_it(&config, round).await;
        broker.stop().await;
        copy(&config.data, if round == 0 { &older } else { &used });
    }
    let foreign = dev(&folder.path().join("foreign"));
    let broker = start(std::slice::from_ref(&foreign)).await.remove(0);
    put_topic(&foreign, "t", v2::MessageType::Normal).await;
    use_it(&foreign, 9).await;
    broker.stop().await;

    let expected = outcome(&config).await.expect("nothing is wrong yet");
    let mut all = Vec::new();
    files(&used, Path::new(""), &mut all);
    assert!(all.len() > 8, "{all:?}");
    let sent: Vec<Vec<u8>> = (0..2_u8).flat_map(|round| (0..6).map(move |n| vec![round, n, 7])).collect();
    assert!(!expected.bodies.is_empty() && expected.bodies.iter().all(|body| sent.contains(body)));
    let (mut wrong, mut refused, mut unharmed, mut guarded) = (Vec::new(), 0, 0, 0);
    for file in &all {
        for bad in ALL {
            config.data = folder.path().join("case");
            copy(&used, &config.data);
            let case = format!("{} {bad:?}", file.display());
            if replace(&config.data, file, bad, &older, &foreign.data) {
                match outcome(&config).await {
                    Ok(now) if now.parts == expected.parts => unharmed += 1,
                    // The units of a ConsumeQueue have no checksum of their own; what they address has one. So a queue
                    // that is not what was written hands out nothing, and `mqadmin digest` shows the difference.
                    Ok(now) if file.starts_with("broker-a/consumequeue") && matches!(bad, Bad::Random) => {
                        assert!(
                            now.bodies.iter().all(|body| sent.contains(body)),
                            "{case}: {:?}",
                            now.bodies
                        );
                        guarded += 1;
                    }
                    Ok(_) => wrong.push(format!("{case}: serves something else")),
                    Err(why) if names(&why, file) => refused += 1,
                    Err(why) => wrong.push(format!("{case}: does not name it: {why}")),
                }
            }
            std::fs::remove_dir_all(&config.data).expect("removed");
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        wrong.len() + refused + unharmed + guarded,
        wrong.join("\n")
    );
    assert!(refused > 10 && unharmed > 5, "{refused} refused, {unharmed} unharmed, {guarded}: one-sided");
}
