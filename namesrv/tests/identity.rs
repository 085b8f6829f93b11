//! A name server refuses a folder that is locked, or that belongs to somebody else.

mod cluster;

use cluster::{Cluster, deps};
use mq_namesrv::{Limits, NameServer};
use mq_runtime::exit::Exit;
use mq_runtime::process::StartFailure;
use mq_runtime::shutdown::Shutdown;

#[tokio::test(flavor = "multi_thread")]
async fn folders_of_others_are_refused() {
    let mut cluster = Cluster::start(Limits::default()).await;
    let locked = NameServer::start(&cluster.config(0), deps(), Shutdown::new()).await.expect_err("locked");
    assert!(locked.to_string().contains("locked"), "{locked}");
    assert_eq!(locked.exit(), Exit::Config);

    cluster.stop(0).await;
    let mut foreign = cluster.config(0);
    foreign.cluster = "another".into();
    let refused = NameServer::start(&foreign, deps(), Shutdown::new()).await.expect_err("another cluster");
    assert_eq!(refused.exit(), Exit::Identity, "{refused}");
    cluster.stop(1).await;
    let mut foreign = cluster.config(0);
    foreign.data = cluster.data(1);
    let refused = NameServer::start(&foreign, deps(), Shutdown::new()).await.expect_err("another node");
    assert_eq!(refused.exit(), Exit::Identity, "{refused}");
    cluster.run(0).await;
    cluster.run(1).await;
    cluster.leader().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_emptied_folder_stops() {
    let mut cluster = Cluster::start(Limits::default()).await;
    cluster.stop(2).await;
    std::fs::remove_dir_all(cluster.data(2)).expect("emptied");
    let shutdown = Shutdown::new();
    let started = NameServer::start(&cluster.config(2), deps(), shutdown.clone()).await;
    let exit = match started {
        Err(error) => error.exit(),
        Ok(node) => {
            let token = shutdown.token();
            let stopped = tokio::time::timeout(std::time::Duration::from_secs(30), token.cancelled());
            let state = node.readiness();
            let stopped = stopped.await;
            assert!(stopped.is_ok(), "it does not stop by itself: {:?}", state().reason);
            node.stop().await;
            shutdown.exit()
        }
    };
    assert_eq!(exit, Exit::Identity);
}
