//! `mqadmin`: administration, sending, receiving and measuring from the command line.

mod arguments;
mod bench;
mod compatible;
mod digest;
mod groups;
mod input;
mod kv;
mod leadership;
mod lookup;
mod outcome;
mod output;
mod receive;
mod send;
mod status;
mod topics;

use std::process::ExitCode;

use arguments::Connection;
use clap::{Parser, Subcommand};
use outcome::Outcome;

/// Administration of a RaftMQ cluster.
///
/// Exit codes: 0 done, 1 failed, 2 wrong use, 3 not found, 4 no leader or unavailable, 5 refused,
/// 10 answered but unhealthy.
#[derive(Debug, Parser)]
#[command(name = "mqadmin", version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// State of all groups: leaders, terms, indexes, lag of each member; exit code 10 when something is wrong
    #[command(visible_aliases = ["cluster", "clusterList"])]
    Status,
    /// Topics
    #[command(subcommand)]
    Topic(topics::TopicCommand),
    /// Subscription groups
    #[command(subcommand)]
    Group(groups::GroupCommand),
    /// Settings that the name servers keep
    #[command(subcommand)]
    Kv(kv::KvCommand),
    /// Sends each line of files or of the standard input as a message
    Send(send::SendArguments),
    /// Receives messages and acknowledges them
    #[command(visible_alias = "recv")]
    Receive(receive::ReceiveArguments),
    /// Compares the replicas of every group; exit code 1 when they differ
    #[command(name = "verify", visible_alias = "digest")]
    Digest(digest::DigestArguments),
    /// Hands the leadership of a broker group to another member
    Transfer(leadership::TransferArguments),
    /// Measures confirmed sends in a closed loop
    Bench(bench::BenchArguments),
    #[command(flatten)]
    Compatible(compatible::CompatibleCommand),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = run(cli);
    if let Err(failure) = &outcome {
        eprintln!("{}: {failure}", failure.heading());
    }
    outcome.map_or_else(|failure| ExitCode::from(failure.exit_code()), |()| ExitCode::SUCCESS)
}

fn run(cli: Cli) -> Outcome {
    // Administration is one call after the other; only sending and measuring have use for more threads.
    let busy = matches!(cli.command, Command::Bench(_) | Command::Send(_) | Command::Receive(_));
    let mut runtime = if busy {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = runtime.enable_all().build().map_err(outcome::Failure::failed)?;
    let done = runtime.block_on(dispatch(cli));
    // Background refreshes may be under way: nobody waits for them.
    runtime.shutdown_background();
    done
}

async fn dispatch(cli: Cli) -> Outcome {
    let connection = cli.connection;
    match cli.command {
        Command::Status => status::run(&connection).await,
        Command::Topic(command) => topics::run(&connection, command).await,
        Command::Group(command) => groups::run(&connection, command).await,
        Command::Kv(command) => kv::run(&connection, command).await,
        Command::Send(arguments) => send::run(&connection, arguments).await,
        Command::Receive(arguments) => receive::run(&connection, arguments).await,
        Command::Digest(arguments) => digest::run(&connection, arguments).await,
        Command::Transfer(arguments) => leadership::run(&connection, arguments).await,
        Command::Bench(arguments) => bench::run(&connection, arguments).await,
        Command::Compatible(command) => compatible::run(connection, command).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
