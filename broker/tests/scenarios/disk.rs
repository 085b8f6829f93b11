//! A file system above its mark: sends are refused in a way that clients repeat, everything else goes on.

use crate::support::{Client, OK, code, dev, message, receive, start};

/// RB-33 (the clause of one node): refused at the mark, acks go on, nothing that was confirmed is missing.
#[tokio::test(flavor = "multi_thread")]
async fn sends_are_refused_above_the_mark_while_receives_and_acks_go_on() {
    let _turn = crate::support::turn().await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = dev(folder.path());
    config.disk.refuse_percent = 99;
    let brokers = start(std::slice::from_ref(&config)).await;
    Client::of(&config).store(message("t", "kept")).await;
    for broker in brokers {
        broker.stop().await;
    }

    // The same folder under a mark that any used file system is above.
    config.disk.refuse_percent = 1;
    let brokers = start(std::slice::from_ref(&config)).await;
    let client = Client::of(&config);
    let refused = client.send(message("t", "refused")).await.status.expect("a status");
    assert_eq!(refused.code, 42_900, "retryable and certainly not stored: {}", refused.message);
    assert!(refused.message.contains("percent") && refused.message.contains("the limit is 1"), "{refused:?}");
    let (code_, messages) = client.receive(receive("g", "t", 2_000)).await;
    assert_eq!((code_, messages.len()), (OK, 1));
    assert_eq!(messages[0].body, "kept");
    assert_eq!(code(&client.ack("g", &messages[0]).await.status), OK);
    for broker in brokers {
        broker.stop().await;
    }

    config.disk.refuse_percent = 99;
    let brokers = start(std::slice::from_ref(&config)).await;
    let client = Client::of(&config);
    client.store(message("t", "again")).await;
    let (_, messages) = client.receive(receive("g", "t", 2_000)).await;
    let bodies: Vec<_> = messages.iter().map(|message| message.body.clone()).collect();
    assert_eq!(bodies, ["again"], "the refused one was not stored, the acknowledged one does not come again");
    for broker in brokers {
        broker.stop().await;
    }
}
