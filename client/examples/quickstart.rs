//! Sends a message and receives it: `mqbroker dev` first, then `cargo run -p mq-client --example quickstart`.

use std::time::Duration;

use mq_client::{Client, FilterExpression, Message};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let client = Client::builder().brokers([broker]).build()?;

    let producer = client.producer().build()?;
    let receipt = producer.send(Message::new("quickstart", "hello")).await?;
    println!("stored at offset {}", receipt.offset);

    let consumer =
        client.simple_consumer("readers").subscribe("quickstart", FilterExpression::all()).build()?;
    for message in consumer.receive(16, Duration::from_secs(30), Duration::from_secs(5)).await? {
        println!("received {}", String::from_utf8_lossy(message.body()));
        consumer.ack(&message).await?;
    }
    Ok(())
}
